//! Builds the model of a configuration whose types are right, and checks the quotas against it.

use std::collections::{BTreeMap, BTreeSet};

use rcfarm_api::FieldError;

use super::check::{self, MAX_CELLS};
use super::{CellConfig, PhysicalCellSpec};
use crate::model::{Arena, Cell, CellIx, CellModel, Chain, NONE, NodeIx, VirtualCluster};
use crate::state::free::FreeCells;

pub(super) fn build(config: &CellConfig, chains: Vec<Chain>) -> Result<CellModel, Vec<FieldError>> {
    let mut builder = Builder {
        model: CellModel {
            search_order: search_order(&chains),
            chain_nodes: vec![Vec::new(); chains.len()],
            chains,
            physical: Arena::default(),
            virtuals: Arena::default(),
            vcs: BTreeMap::new(),
            pinned: BTreeMap::new(),
            node_names: Vec::new(),
            nodes: BTreeMap::new(),
            node_cells: Vec::new(),
            devices: BTreeMap::new(),
            device_numbers: Vec::new(),
            preassigned: BTreeMap::new(),
            owners: BTreeMap::new(),
        },
        pins: BTreeMap::new(),
        errors: Vec::new(),
    };
    builder.physical(config);
    builder.virtuals(config);
    if builder.errors.is_empty() {
        builder.check_quotas(config);
    }
    if builder.errors.is_empty() { Ok(builder.model) } else { Err(builder.errors) }
}

fn search_order(chains: &[Chain]) -> Vec<u16> {
    let mut order: Vec<u16> = (0..chains.len() as u16).collect();
    order.sort_by(|&a, &b| chains[b as usize].name.cmp(&chains[a as usize].name));
    order
}

struct Builder {
    model: CellModel,
    pins: BTreeMap<String, CellIx>,
    errors: Vec<FieldError>,
}

/// What a physical cell has from the cells above it.
#[derive(Clone, Copy)]
struct Above<'a> {
    chain: u16,
    parent: CellIx,
    root: CellIx,
    prefix: &'a str,
    /// The segment of its address if it has none of its own.
    number: u64,
    node: NodeIx,
}

impl Builder {
    fn physical(&mut self, config: &CellConfig) {
        for (n, top) in config.physical_cluster.physical_cells.iter().enumerate() {
            let chain = self.model.chains.iter().position(|chain| chain.name == top.cell_type);
            let Some(chain) = chain else { continue };
            let root = self.model.physical.len() as CellIx;
            self.model.chains[chain].tops.push(root);
            let above = Above {
                chain: chain as u16,
                parent: NONE,
                root,
                prefix: "",
                number: n as u64,
                node: NONE,
            };
            let level = self.model.chains[chain].top();
            let path = format!("physicalCluster.physicalCells[{n}]");
            self.physical_cell(Some(top), level, above, &path);
        }
    }

    fn physical_cell(
        &mut self,
        spec: Option<&PhysicalCellSpec>,
        level: usize,
        above: Above<'_>,
        path: &str,
    ) {
        let model = &mut self.model;
        let chain = &model.chains[above.chain as usize];
        let (fan_out, node_level) = (u64::from(chain.level(level).fan_out), chain.node_level);
        let own = spec.map(|spec| spec.cell_address.as_str()).filter(|own| !own.is_empty());
        let own = own.map_or_else(|| above.number.to_string(), str::to_owned);
        let cell = model.physical.len() as CellIx;
        let mut node = above.node;
        if level == node_level {
            let next = model.node_names.len() as NodeIx;
            node = *model.nodes.entry(own.clone()).or_insert(next);
            if node == next {
                model.node_names.push(own.clone());
                model.node_cells.push(Vec::new());
            }
            model.node_cells[node as usize].push(cell);
            model.chain_nodes[above.chain as usize].push(cell);
        }
        let first_leaf = model.physical.leaves.len() as u32;
        model.physical.cells.push(Cell {
            chain: above.chain,
            level: level as u16,
            parent: above.parent,
            root: above.root,
            first_leaf,
            node,
        });
        if level == 1 {
            model.physical.leaves.push(cell);
            let number = own.parse().unwrap_or(-1);
            model.device_numbers.push(number);
            if model.devices.insert((node, number), cell).is_some() {
                let name = &model.node_names[node as usize];
                self.errors.push(check::twice(&format!("{path}.cellAddress"), name, number));
            }
        }
        let address = format!("{}{own}", above.prefix);
        let prefix = format!("{address}/");
        self.model.physical.addresses.push(address);
        if let Some(id) = spec.map(|spec| &spec.pinned_cell_id).filter(|id| !id.is_empty()) {
            self.pins.insert(id.clone(), cell);
        }
        let number = if level == node_level { 0 } else { above.number };
        for n in 0..fan_out {
            let child = spec.and_then(|spec| spec.cell_children.get(n as usize));
            let below = Above {
                parent: cell,
                prefix: &prefix,
                number: number.saturating_mul(fan_out).saturating_add(n),
                node,
                ..above
            };
            // Paths of cells that the document lacks are those of their parents.
            let child_path = child.map(|_| format!("{path}.cellChildren[{n}]"));
            self.physical_cell(child, level - 1, below, child_path.as_deref().unwrap_or(path));
        }
    }

    fn virtuals(&mut self, config: &CellConfig) {
        let declared: BTreeSet<&str> =
            config.physical_cluster.cell_types.keys().map(String::as_str).collect();
        let mut total = 0u64;
        for (name, spec) in &config.virtual_clusters {
            let mut vc = VirtualCluster::default();
            let mut number = 0u64;
            for (n, cells) in spec.virtual_cells.iter().enumerate() {
                let path = format!("virtualClusters.{name}.virtualCells[{n}]");
                let found =
                    check::level_of_path(&self.model.chains, &declared, &cells.cell_type, &path);
                let (chain, level) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        self.errors.push(error);
                        continue;
                    }
                };
                let Ok(count) = u64::try_from(cells.cell_number) else {
                    self.errors.push(FieldError::new(
                        format!("{path}.cellNumber"),
                        format!("it is {}", cells.cell_number),
                        "give 0 or more",
                    ));
                    continue;
                };
                let size = u64::from(self.model.chain(chain).level(level).size);
                total = total.saturating_add(count.saturating_mul(size));
                if total > MAX_CELLS {
                    self.errors.push(FieldError::new(
                        format!("{path}.cellNumber"),
                        format!("all virtual clusters together have more than {MAX_CELLS} cells"),
                        "lower it",
                    ));
                    return;
                }
                for _ in 0..count {
                    let cell = self.preassigned(name, number, chain, level);
                    vc.preassigned.entry(chain).or_default().push(cell);
                    number += 1;
                }
            }
            for pin in &spec.pinned_cells {
                let Some(&physical) = self.pins.get(&pin.pinned_cell_id) else { continue };
                let of = self.model.physical.get(physical);
                let (chain, level) = (of.chain, of.level as usize);
                let cell = self.preassigned(name, number, chain, level);
                let id = pin.pinned_cell_id.clone();
                vc.pinned.insert(id.clone(), cell);
                vc.pinned_nodes.insert(id.clone(), self.acting_nodes(&[cell]));
                self.model.pinned.insert(id, (physical, cell));
                number += 1;
            }
            for (&chain, cells) in &vc.preassigned {
                vc.nodes.insert(chain, self.acting_nodes(cells));
            }
            self.model.vcs.insert(name.clone(), vc);
        }
    }

    fn preassigned(&mut self, vc: &str, number: u64, chain: u16, level: usize) -> CellIx {
        let address = format!("{vc}/{number}");
        let cell = self.model.virtuals.len() as CellIx;
        self.model.preassigned.insert(address.clone(), cell);
        self.model.owners.insert(cell, vc.to_owned());
        self.virtual_cell(chain, level, NONE, cell, address, 0);
        cell
    }

    fn virtual_cell(
        &mut self,
        chain: u16,
        level: usize,
        parent: CellIx,
        root: CellIx,
        address: String,
        offset: u64,
    ) {
        let fan_out = u64::from(self.model.chain(chain).level(level).fan_out);
        let arena = &mut self.model.virtuals;
        let cell = arena.len() as CellIx;
        let first_leaf = arena.leaves.len() as u32;
        arena.cells.push(Cell { chain, level: level as u16, parent, root, first_leaf, node: NONE });
        if level == 1 {
            arena.leaves.push(cell);
        }
        arena.addresses.push(address.clone());
        for n in 0..fan_out {
            let segment = offset * fan_out + n;
            let address = format!("{address}/{segment}");
            self.virtual_cell(chain, level - 1, cell, root, address, segment);
        }
    }

    /// Cells of the node level, and preassigned cells below it, each of which acts as a node.
    fn acting_nodes(&self, preassigned: &[CellIx]) -> Vec<CellIx> {
        let model = &self.model;
        let mut nodes = Vec::new();
        for &cell in preassigned {
            let node_level = model.chain_of(&model.virtuals, cell).node_level;
            let size = model.chain_of(&model.virtuals, cell).level(model.virtuals.level(cell)).size;
            if model.virtuals.level(cell) <= node_level {
                nodes.push(cell);
            } else {
                nodes
                    .extend((cell..cell + size).filter(|&c| model.virtuals.level(c) == node_level));
            }
        }
        nodes.sort_by_key(|&cell| (std::cmp::Reverse(model.virtuals.level(cell)), cell));
        nodes
    }

    /// All preassigned cells must fit together, once the pinned ones are taken.
    fn check_quotas(&mut self, config: &CellConfig) {
        let mut free = FreeCells::new(&self.model);
        for &(physical, _) in self.model.pinned.values() {
            free.take(&self.model, physical);
        }
        let mut needed: Vec<Vec<i64>> =
            self.model.chains.iter().map(|chain| vec![0; chain.top() + 1]).collect();
        for (name, spec) in &config.virtual_clusters {
            for (n, cells) in spec.virtual_cells.iter().enumerate() {
                let declared = BTreeSet::new();
                let path = format!("virtualClusters.{name}.virtualCells[{n}]");
                let found =
                    check::level_of_path(&self.model.chains, &declared, &cells.cell_type, &path);
                let Ok((chain, level)) = found else { continue };
                let before = free.lacking(&self.model, chain, &needed[chain as usize]);
                needed[chain as usize][level] += cells.cell_number;
                let after = free.lacking(&self.model, chain, &needed[chain as usize]);
                if let (None, Some((level, needed, available))) = (before, after) {
                    let of = self.model.chain(chain);
                    self.errors.push(FieldError::new(
                        format!("{path}.cellNumber"),
                        format!(
                            "the virtual clusters together need {needed} cells of type {:?} (chain {:?}, level \
                             {level}), {available} can be had once larger and pinned cells are taken",
                            of.level(level).cell_type, of.name,
                        ),
                        "lower the number, or add physical cells",
                    ));
                }
            }
        }
    }
}
