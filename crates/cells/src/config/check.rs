//! What a configuration must fulfil by itself: types and physical cells. Quotas are checked while the model is built.

use std::collections::{BTreeMap, BTreeSet};

use rcfarm_api::FieldError;

use super::{CellConfig, PhysicalCellSpec};
use crate::model::{CellType, Chain, Level};

/// Most cells of a cluster, and of all virtual clusters together.
pub(super) const MAX_CELLS: u64 = 1 << 18;
/// Most levels of a chain.
const MAX_LEVELS: usize = 32;

/// The chains that physical cells use, by name of the top type.
pub(super) fn check(config: &CellConfig) -> Result<Vec<Chain>, Vec<FieldError>> {
    let mut errors = Vec::new();
    check_types(config, &mut errors);
    check_virtual_clusters(config, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut chains: Vec<Chain> = Vec::new();
    let mut cells = 0u64;
    for (n, top) in config.physical_cluster.physical_cells.iter().enumerate() {
        let path = format!("physicalCluster.physicalCells[{n}]");
        let known = chains.iter().position(|chain| chain.name == top.cell_type);
        let at = match known {
            Some(at) => at,
            None => match chain_below(config, &top.cell_type, &path) {
                Ok(chain) => {
                    chains.push(chain);
                    chains.len() - 1
                }
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            },
        };
        let chain = &chains[at];
        cells += u64::from(chain.level(chain.top()).size);
        check_cell(top, chain, chain.top(), &path, &mut errors);
    }
    if cells > MAX_CELLS {
        errors.push(FieldError::new(
            "physicalCluster.physicalCells",
            format!("there are {cells} cells"),
            format!("have at most {MAX_CELLS}"),
        ));
    }
    check_pins(config, &mut errors);
    if errors.is_empty() { Ok(chains) } else { Err(errors) }
}

fn check_types(config: &CellConfig, errors: &mut Vec<FieldError>) {
    let types = &config.physical_cluster.cell_types;
    for (name, spec) in types {
        let path = format!("physicalCluster.cellTypes.{name}");
        if spec.child_cell_type.is_empty() {
            errors.push(FieldError::new(
                format!("{path}.childCellType"),
                "it is empty",
                "name the type of the children, for a node of devices the type of the device",
            ));
        }
        if spec.child_cell_number <= 0 {
            errors.push(FieldError::new(
                format!("{path}.childCellNumber"),
                format!("it is {}", spec.child_cell_number),
                "give the number of children, at least 1",
            ));
        }
        let mut at = name;
        for _ in 0..=types.len() {
            match types.get(at) {
                Some(spec) => at = &spec.child_cell_type,
                None => break,
            }
            if at == name {
                errors.push(FieldError::new(
                    format!("{path}.childCellType"),
                    "the type contains itself",
                    "let the chain of child types end with a leaf type",
                ));
                break;
            }
        }
    }
}

fn check_virtual_clusters(config: &CellConfig, errors: &mut Vec<FieldError>) {
    for name in config.virtual_clusters.keys() {
        if name.is_empty() || name.contains('/') {
            errors.push(FieldError::new(
                format!("virtualClusters.{name}"),
                "the name is empty or has a slash, which divides addresses",
                "rename the virtual cluster",
            ));
        }
    }
}

/// The chain of a top type.
fn chain_below(config: &CellConfig, top: &str, path: &str) -> Result<Chain, FieldError> {
    let types = &config.physical_cluster.cell_types;
    let wrong =
        |problem: String, fix: &str| Err(FieldError::new(format!("{path}.cellType"), problem, fix));
    if !types.contains_key(top) {
        let problem = if top.is_empty() {
            "it is empty".to_owned()
        } else {
            format!("{top:?} is not in physicalCluster.cellTypes")
        };
        return wrong(problem, "name a declared type, not a leaf type");
    }
    let mut names: Vec<(CellType, u64, bool)> = Vec::new();
    let mut at = top;
    while let Some(spec) = types.get(at) {
        names.push((at.to_owned(), spec.child_cell_number.unsigned_abs(), spec.is_node_level));
        at = &spec.child_cell_type;
        if names.len() > MAX_LEVELS {
            let problem = format!("the chain of {top:?} has more than {MAX_LEVELS} levels");
            return wrong(problem, "use fewer levels");
        }
    }
    names.push((at.to_owned(), 0, false));
    names.reverse();
    let nodes: Vec<usize> = (0..names.len()).filter(|&n| names[n].2).map(|n| n + 1).collect();
    let node_level = match *nodes.as_slice() {
        [level] => level,
        [] => {
            let fix = "set isNodeLevel on the type whose cells are nodes, and let top cells be nodes or above";
            return wrong(format!("no type from {top:?} downwards is a node"), fix);
        }
        _ => {
            let both: Vec<&str> = nodes.iter().map(|&level| names[level - 1].0.as_str()).collect();
            let problem =
                format!("the chain of {top:?} has several node levels: {}", both.join(", "));
            return wrong(problem, "set isNodeLevel on one of them");
        }
    };
    let mut levels: Vec<Level> = Vec::new();
    for (cell_type, fan_out, _) in names {
        let (leaves, size) = match levels.last() {
            None => (1, 1),
            Some(below) => (
                u64::from(below.leaves) * fan_out,
                u64::from(below.size).saturating_mul(fan_out) + 1,
            ),
        };
        if size > MAX_CELLS || fan_out > MAX_CELLS {
            let problem =
                format!("a cell of type {cell_type:?} would have more than {MAX_CELLS} cells");
            return wrong(problem, "lower childCellNumber");
        }
        levels.push(Level {
            cell_type,
            fan_out: fan_out as u32,
            leaves: leaves as u32,
            size: size as u32,
        });
    }
    Ok(Chain { name: top.to_owned(), levels, node_level, tops: Vec::new() })
}

/// One cell and what stands below it: its type, its children, its address.
fn check_cell(
    cell: &PhysicalCellSpec,
    chain: &Chain,
    level: usize,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let of = chain.level(level);
    if !cell.cell_type.is_empty() && cell.cell_type != of.cell_type {
        errors.push(FieldError::new(
            format!("{path}.cellType"),
            format!("it is {:?}, but its parent's children are {:?}", cell.cell_type, of.cell_type),
            "leave it out, or write the declared type",
        ));
    }
    if cell.cell_address.contains('/') {
        errors.push(FieldError::new(
            format!("{path}.cellAddress"),
            "it has a slash, which divides addresses",
            "give the cell's own segment only",
        ));
    }
    if level == 1 && !cell.cell_address.is_empty() {
        let number = cell.cell_address.parse::<i32>();
        if number.is_err() || number.is_ok_and(|number| number < 0) {
            errors.push(FieldError::new(
                format!("{path}.cellAddress"),
                format!("{:?} is not a device number", cell.cell_address),
                "give the number of the device on its node, 0 or more",
            ));
        }
    }
    let children = cell.cell_children.len();
    if children != 0 && children != of.fan_out as usize {
        let problem = format!(
            "it has {children} children, but cells of type {:?} have {}",
            of.cell_type, of.fan_out
        );
        let fix = "list all children or none, or declare a type of this size";
        errors.push(FieldError::new(format!("{path}.cellChildren"), problem, fix));
        return;
    }
    for (n, child) in cell.cell_children.iter().enumerate() {
        check_cell(child, chain, level - 1, &format!("{path}.cellChildren[{n}]"), errors);
    }
}

/// Pinned cells: one physical cell and one virtual cluster each, none inside another.
fn check_pins(config: &CellConfig, errors: &mut Vec<FieldError>) {
    let mut pins: BTreeMap<&str, String> = BTreeMap::new();
    for (n, top) in config.physical_cluster.physical_cells.iter().enumerate() {
        collect_pins(top, format!("physicalCluster.physicalCells[{n}]"), None, &mut pins, errors);
    }
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (vc, spec) in &config.virtual_clusters {
        for (n, pin) in spec.pinned_cells.iter().enumerate() {
            let path = format!("virtualClusters.{vc}.pinnedCells[{n}].pinnedCellId");
            let id = pin.pinned_cell_id.as_str();
            if !pins.contains_key(id) {
                errors.push(FieldError::new(
                    path,
                    format!("no physical cell is pinned as {id:?}"),
                    "set pinnedCellId on a physical cell, or remove the entry",
                ));
            } else if let Some(other) = owners.insert(id, vc) {
                errors.push(FieldError::new(
                    path,
                    format!("virtual cluster {other:?} already has pinned cell {id:?}"),
                    "give each pinned cell to one virtual cluster, once",
                ));
            }
        }
    }
}

fn collect_pins<'a>(
    cell: &'a PhysicalCellSpec,
    path: String,
    within: Option<&'a str>,
    pins: &mut BTreeMap<&'a str, String>,
    errors: &mut Vec<FieldError>,
) {
    let id = cell.pinned_cell_id.as_str();
    let mut within = within;
    if !id.is_empty() {
        if let Some(other) = pins.get(id) {
            errors.push(FieldError::new(
                format!("{path}.pinnedCellId"),
                format!("{other} is pinned as {id:?}, too"),
                "give each pinned cell a name of its own",
            ));
        } else if let Some(outer) = within {
            errors.push(FieldError::new(
                format!("{path}.pinnedCellId"),
                format!("the cell is part of pinned cell {outer:?}"),
                "pin one of the two",
            ));
        }
        pins.entry(id).or_insert_with(|| path.clone());
        within = Some(id);
    }
    for (n, child) in cell.cell_children.iter().enumerate() {
        collect_pins(child, format!("{path}.cellChildren[{n}]"), within, pins, errors);
    }
}

/// Device numbers that occur twice on a node would be given to two pods.
pub(super) fn twice(path: &str, node: &str, device: i32) -> FieldError {
    FieldError::new(
        path,
        format!("device {device} of node {node:?} is part of another cell"),
        "let each device be part of one cell",
    )
}

/// Types of a dotted path, checked against a chain: the last level.
pub(super) fn level_of_path(
    chains: &[Chain],
    declared: &BTreeSet<&str>,
    text: &str,
    path: &str,
) -> Result<(u16, usize), FieldError> {
    let path = format!("{path}.cellType");
    let mut types = text.split('.');
    // A type's name may itself have dots: the longest chain name that the text begins with counts.
    let chain = chains
        .iter()
        .enumerate()
        .filter(|(_, chain)| {
            text.strip_prefix(&chain.name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .max_by_key(|(_, chain)| chain.name.len());
    let Some((n, chain)) = chain else {
        let first = types.next().unwrap_or_default();
        let problem = if declared.contains(first) {
            format!("no physical cell has the type {first:?}")
        } else {
            format!("{first:?} is not in physicalCluster.cellTypes")
        };
        return Err(FieldError::new(path, problem, "begin with the type of a top cell"));
    };
    let mut level = chain.top();
    let mut rest = &text[chain.name.len()..];
    while !rest.is_empty() {
        let below = level.checked_sub(1).filter(|&below| below > 0);
        let next = below.map(|below| chain.level(below).cell_type.as_str());
        let after = next.and_then(|next| rest[1..].strip_prefix(next));
        match after {
            Some(after) if after.is_empty() || after.starts_with('.') => {
                rest = after;
                level -= 1;
            }
            _ => {
                let problem = format!(
                    "{:?} does not follow {:?} in the chain {}",
                    &rest[1..],
                    chain.level(level).cell_type,
                    names(chain)
                );
                return Err(FieldError::new(
                    path,
                    problem,
                    "name each level of the chain, from the top down",
                ));
            }
        }
    }
    Ok((n as u16, level))
}

fn names(chain: &Chain) -> String {
    let names: Vec<&str> =
        chain.levels.iter().rev().map(|level| level.cell_type.as_str()).collect();
    names.join(".")
}
