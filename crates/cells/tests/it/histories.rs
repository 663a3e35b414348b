//! Random histories: groups of all kinds and priorities, nodes that come and go, reconfiguration, restarts.
//!
//! After every step the invariants hold. What virtual clusters were promised is checked by exhaustive search.
//! `HISTORIES=10000` runs more of them, `HISTORY=7` one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rcfarm_cells::request::{Members, NestedGroup};
use rcfarm_cells::{
    CellConfig, CellDecision, CellEvent, CellHealthiness, CellScheduler, GroupKey, GroupRequest,
    PodRequest,
};

use crate::stages::Stages;
use crate::vectors_m::MINI;

/// Configurations of at most six nodes. Each is a list of alternatives, for reconfiguration.
fn clusters() -> Vec<Vec<String>> {
    let types = "
physicalCluster:
  cellTypes:
    PAIR: {childCellType: GPU, childCellNumber: 2}
    NODE: {childCellType: PAIR, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
    ROW: {childCellType: RACK, childCellNumber: 2}
    OTHER: {childCellType: CPU, childCellNumber: 3, isNodeLevel: true}
  physicalCells:";
    let row = "
  - {cellType: ROW, cellChildren: [{cellChildren: [{cellAddress: n0}, {cellAddress: n1}]}, {cellChildren: [{cellAddress: n2}, {cellAddress: n3, pinnedCellId: p}]}]}
  - {cellType: OTHER, cellAddress: n4}
  - {cellType: OTHER, cellAddress: n5}";
    let racks = "
  - {cellType: RACK, cellChildren: [{cellAddress: n0}, {cellAddress: n1, pinnedCellId: p}]}
  - {cellType: RACK, cellChildren: [{cellAddress: n2}, {cellAddress: n3}]}
  - {cellType: RACK, cellChildren: [{cellAddress: n4}, {cellAddress: n5}]}";
    let with = |cells: &str, vcs: &str| format!("{types}{cells}\nvirtualClusters:\n{vcs}");
    vec![
        vec![
            MINI.to_owned(),
            MINI.replace("{cellType: RACK, cellNumber: 1}", "{cellType: RACK.NODE, cellNumber: 2}"),
            MINI.replace("RACK.NODE, cellNumber: 2", "RACK.NODE, cellNumber: 1"),
            MINI.replace("{cellAddress: n3}", "{cellAddress: n9}"),
        ],
        vec![
            with(row, "
  A: {virtualCells: [{cellType: ROW.RACK, cellNumber: 1}, {cellType: OTHER, cellNumber: 1}], pinnedCells: [{pinnedCellId: p}]}
  B: {virtualCells: [{cellType: ROW.RACK.NODE.PAIR, cellNumber: 2}, {cellType: OTHER.CPU, cellNumber: 2}]}"),
            with(row, "
  A: {virtualCells: [{cellType: ROW.RACK.NODE, cellNumber: 2}, {cellType: OTHER, cellNumber: 2}]}
  B: {virtualCells: [{cellType: ROW.RACK.NODE.PAIR, cellNumber: 1}], pinnedCells: [{pinnedCellId: p}]}"),
        ],
        vec![
            with(racks, "
  A: {virtualCells: [{cellType: RACK, cellNumber: 1}, {cellType: RACK.NODE, cellNumber: 1}], pinnedCells: [{pinnedCellId: p}]}
  B: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}, {cellType: RACK.NODE.PAIR, cellNumber: 1}]}
  C: {}"),
            with(racks, "
  A: {virtualCells: [{cellType: RACK, cellNumber: 2}]}
  B: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}], pinnedCells: [{pinnedCellId: p}]}"),
        ],
    ]
}

struct History {
    rng: ChaCha8Rng,
    cells: CellScheduler,
    config: CellConfig,
    alternatives: Vec<CellConfig>,
    /// Requests of groups that exist or wait, by key.
    requests: BTreeMap<GroupKey, GroupRequest>,
    pods: u64,
    /// How often each event occurred.
    events: BTreeMap<&'static str, u32>,
}

#[test]
fn histories_keep_the_invariants() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HISTORIES").unwrap_or(300),
    };
    let (mut steps, mut events) = (BTreeMap::new(), BTreeMap::new());
    for seed in seeds {
        let clusters = clusters();
        let cluster = &clusters[seed as usize % clusters.len()];
        let alternatives: Vec<CellConfig> =
            cluster.iter().map(|text| CellConfig::parse(text).expect("it can be read")).collect();
        let config = alternatives[0].clone();
        let model = Arc::new(config.validate().expect("it is legal"));
        let mut history = History {
            rng: ChaCha8Rng::seed_from_u64(seed),
            cells: CellScheduler::new(model),
            config,
            alternatives,
            requests: BTreeMap::new(),
            pods: 0,
            events: BTreeMap::new(),
        };
        history.heal_all();
        // Some histories have only healthy nodes: there the exhaustive search has more to say.
        let flapping = seed % 3 != 0;
        for step in 0..60 {
            let before = Stages::of(&history.cells);
            let what = history.step(flapping);
            let steps_taken = before.steps(&Stages::of(&history.cells), what);
            assert!(steps_taken.is_ok(), "HISTORY={seed}, step {step}, {what}: {steps_taken:?}");
            *steps.entry(what).or_insert(0u32) += 1;
            let violations = history.cells.violations();
            assert!(violations.is_empty(), "HISTORY={seed}, step {step}, {what}: {violations:#?}");
        }
        for (event, count) in std::mem::take(&mut history.events) {
            *events.entry(event).or_insert(0) += count;
        }
        history.end(seed);
    }
    println!("{steps:#?} {events:#?}");
    if number("HISTORY").is_none() {
        for event in
            ["allocated", "reserved", "cancelled", "downgraded", "restored", "deleted", "doomed"]
        {
            assert!(events.contains_key(event), "no history had {event}");
        }
    }
}

impl History {
    fn heal_all(&mut self) {
        let nodes: Vec<String> = self.cells.model().nodes().map(str::to_owned).collect();
        let healthy = nodes.iter().map(|node| (node.as_str(), CellHealthiness::Healthy));
        self.cells.set_nodes(healthy);
    }

    fn step(&mut self, flapping: bool) -> &'static str {
        match self.rng.random_range(0..100) {
            0..45 => {
                let request = self.request();
                self.schedule(&request)
            }
            45..62 => self.again(),
            62..80 => self.end_pod(),
            80..83 => self.end_group(),
            83..93 if flapping => self.flap(),
            93..97 => self.restart(),
            97..99 => self.reconfigure(),
            _ => "nothing",
        }
    }

    fn request(&mut self) -> GroupRequest {
        let rng = &mut self.rng;
        let vc = if rng.random_ratio(1, 30) { "C" } else { *["A", "B"].choose(rng).expect("some") };
        let name = format!("g{}", rng.random_range(0..12));
        let key = GroupKey::new(vc, name);
        if let Some(known) = self.requests.get(&key) {
            let full = self
                .cells
                .group(&key)
                .is_some_and(|group| group.pods.iter().all(|pod| pod.pod.is_some()));
            if !full || rng.random_ratio(1, 10) {
                return known.clone();
            }
        }
        let key = (0..20)
            .map(|n| GroupKey::new(vc, format!("g{n}")))
            .find(|key| self.cells.group(key).is_none())
            .unwrap_or(key);
        let priority = *[-1, -1, 0, 0, 1, 2, 5].choose(rng).expect("some");
        let mut sizes: Vec<u32> = (1..=5).collect();
        sizes.shuffle(rng);
        sizes.truncate(rng.random_range(1..=3));
        sizes.sort_unstable();
        let members: Vec<Members> = sizes
            .iter()
            .map(|&cells| Members { pods: rng.random_range(1..=2), cells, cell_type: None })
            .collect();
        let nested = rng.random_ratio(1, 4);
        let other =
            if self.cells.model().chains().any(|chain| chain == "OTHER") { "CPU" } else { "GPU" };
        let mut request = GroupRequest {
            key,
            priority,
            pinned_cell_id: (priority >= 0 && rng.random_ratio(1, 12)).then(|| "p".to_owned()),
            cell_type: [None, Some("GPU"), Some("GPU"), Some("GPU"), Some(other)]
                .choose(rng)
                .expect("some")
                .map(str::to_owned),
            gang_release_enable: false,
            lazy_preemption_enable: rng.random_ratio(1, 2),
            ignore_suggested_nodes: nested || rng.random_ratio(3, 4),
            members,
            nested: None,
        };
        if nested {
            nest(&mut request, rng);
        }
        request
    }

    fn suggested(&mut self) -> BTreeSet<String> {
        let nodes: Vec<String> = self.cells.model().nodes().map(str::to_owned).collect();
        nodes.into_iter().filter(|_| self.rng.random_ratio(3, 4)).collect()
    }

    fn schedule(&mut self, group: &GroupRequest) -> &'static str {
        let member = self.rng.random_range(0..group.members.len());
        let request = PodRequest { group: group.clone(), member };
        let suggested = self.suggested();
        self.pods += 1;
        let pod = format!("pod{}", self.pods);
        let before = self.cells.clone();
        let decision = self.cells.plan(&request, &pod, Some(&suggested));
        assert_eq!(before.difference(&self.cells), None, "a plan changes nothing");
        let key = &group.key;
        match decision {
            Err(_) => "refused",
            Ok(CellDecision::Wait(wait)) => {
                assert!(
                    wait.reasons.iter().all(|of| !of.reason.is_empty()) && !wait.reasons.is_empty()
                );
                self.check_guarantee(group);
                if let Some(reason) = &wait.cancel {
                    let events = self.cells.cancel(key, reason);
                    self.count(&events);
                }
                "waits"
            }
            Ok(CellDecision::Bind(plan)) => {
                assert!(plan.victims.is_empty());
                let existed = self.cells.group(key).is_some();
                let nodes = plan.pods.iter().map(|pod| pod.node.as_str());
                if !existed {
                    self.check_nodes(group, nodes, &suggested);
                }
                let events = self
                    .cells
                    .commit(&plan, &pod, Timestamp::UNIX_EPOCH)
                    .expect("nothing has changed");
                self.count(&events);
                self.requests.insert(key.clone(), group.clone());
                "bound"
            }
            Ok(CellDecision::Preempt(plan)) => {
                assert!(!plan.victims.is_empty());
                assert!(group.priority >= 0, "opportunistic groups preempt nobody");
                for victim in &plan.victims {
                    let lower = self.cells.group(victim).is_some_and(|victim| {
                        let own = victim.key.virtual_cluster == group.key.virtual_cluster;
                        victim.priority() < 0 || own && victim.priority() < group.priority
                    });
                    let held = self.cells.group(key).is_some();
                    assert!(lower || held, "{victim} is no victim for {key}");
                }
                if self.rng.random_ratio(1, 4) {
                    return "would preempt";
                }
                let events = self
                    .cells
                    .commit(&plan, &pod, Timestamp::UNIX_EPOCH)
                    .expect("nothing has changed");
                self.count(&events);
                self.requests.insert(key.clone(), group.clone());
                "preempts"
            }
        }
    }

    /// New places are on healthy nodes, and on suggested ones where the request is strict.
    fn check_nodes<'a>(
        &self,
        group: &GroupRequest,
        nodes: impl Iterator<Item = &'a str>,
        suggested: &BTreeSet<String>,
    ) {
        for node in nodes {
            assert_eq!(self.cells.node_health(node), Some(CellHealthiness::Healthy), "{node}");
            assert!(group.ignore_suggested_nodes || suggested.contains(node), "{node}");
        }
    }

    fn any_group(&mut self) -> Option<GroupKey> {
        let keys: Vec<GroupKey> = self.cells.groups().map(|group| group.key.clone()).collect();
        keys.choose(&mut self.rng).cloned()
    }

    fn again(&mut self) -> &'static str {
        let Some(key) = self.any_group() else { return "nothing" };
        let Some(request) = self.requests.get(&key).cloned() else { return "nothing" };
        self.schedule(&request)
    }

    fn end_pod(&mut self) -> &'static str {
        let Some(key) = self.any_group() else { return "nothing" };
        let group = self.cells.group(&key).expect("it exists");
        let pods: Vec<String> = group
            .allocated_pods()
            .map(str::to_owned)
            .chain(group.preempting_pods.clone())
            .collect();
        let Some(pod) = pods.choose(&mut self.rng).cloned() else { return "nothing" };
        let events = self.cells.pod_gone(&key, &pod);
        self.count(&events);
        self.forget(&key);
        "pod ended"
    }

    fn end_group(&mut self) -> &'static str {
        let Some(key) = self.any_group() else { return "nothing" };
        let events = self.cells.delete(&key);
        self.count(&events);
        self.forget(&key);
        "group ended"
    }

    fn count(&mut self, events: &[CellEvent]) {
        for event in events {
            let name = match event {
                CellEvent::Allocated { .. } => "allocated",
                CellEvent::Reserved { .. } => "reserved",
                CellEvent::Cancelled { .. } => "cancelled",
                CellEvent::Downgraded { .. } => "downgraded",
                CellEvent::Restored { .. } => "restored",
                CellEvent::Deleted { .. } => "deleted",
            };
            *self.events.entry(name).or_insert(0) += 1;
        }
        if !self.cells.doomed().is_empty() {
            *self.events.entry("doomed").or_insert(0) += 1;
        }
    }

    fn forget(&mut self, _: &GroupKey) {
        let cells = &self.cells;
        self.requests.retain(|key, _| cells.group(key).is_some());
    }

    fn flap(&mut self) -> &'static str {
        let nodes: Vec<String> = self.cells.model().nodes().map(str::to_owned).collect();
        let node = nodes.choose(&mut self.rng).expect("some");
        let health = if self.rng.random_ratio(1, 2) {
            CellHealthiness::Bad
        } else {
            CellHealthiness::Healthy
        };
        self.cells.set_node(node, health);
        "node"
    }

    fn rebuilt(&mut self, config: &CellConfig) -> (CellScheduler, usize) {
        let model = Arc::new(config.validate().expect("it is legal"));
        let mut records = self.cells.records();
        records.shuffle(&mut self.rng);
        let text = serde_json::to_string(&records).expect("it encodes");
        let records: Vec<_> = serde_json::from_str(&text).expect("it decodes");
        let nodes: Vec<(String, CellHealthiness)> = model
            .nodes()
            .map(|node| {
                let health = self.cells.node_health(node).unwrap_or(CellHealthiness::Healthy);
                (node.to_owned(), health)
            })
            .collect();
        let nodes = nodes.iter().map(|(node, health)| (node.as_str(), *health));
        let (cells, notes) = CellScheduler::rebuild(model, nodes, records, Timestamp::UNIX_EPOCH);
        (cells, notes.len())
    }

    fn restart(&mut self) -> &'static str {
        let config = self.config.clone();
        let (cells, notes) = self.rebuilt(&config);
        assert_eq!(self.cells.difference(&cells), None, "rebuilt from records");
        let _ = notes;
        self.cells = cells;
        "restart"
    }

    fn reconfigure(&mut self) -> &'static str {
        let config = self.alternatives.choose(&mut self.rng).expect("some").clone();
        let pods = |cells: &CellScheduler| -> BTreeSet<String> {
            cells.groups().flat_map(|group| group.allocated_pods().map(str::to_owned)).collect()
        };
        let before = pods(&self.cells);
        (self.cells, _) = self.rebuilt(&config);
        assert_eq!(pods(&self.cells), before, "pods keep running");
        self.config = config;
        self.forget(&GroupKey::new("", ""));
        "reconfigured"
    }

    /// When all has gone, nothing is left.
    fn end(mut self, seed: u64) {
        let keys: Vec<GroupKey> = self.cells.groups().map(|group| group.key.clone()).collect();
        for key in keys {
            self.cells.delete(&key);
        }
        self.heal_all();
        let mut fresh = CellScheduler::new(Arc::clone(self.cells.model()));
        std::mem::swap(&mut self.cells, &mut fresh);
        self.heal_all();
        assert_eq!(self.cells.difference(&fresh), None, "HISTORY={seed}");
    }

    /// A guaranteed group that waits while all nodes are healthy fits nowhere in its quota: no division of its pods over
    /// the nodes of its virtual cells exists, with all that runs at a lower priority out of the way.
    fn check_guarantee(&self, group: &GroupRequest) {
        let healthy = |node: &str| self.cells.node_health(node) == Some(CellHealthiness::Healthy);
        let exists = self.cells.group(&group.key).is_some();
        if group.priority < 0
            || exists
            || group.nested.is_some()
            || !group.ignore_suggested_nodes
            || !self.cells.model().nodes().all(healthy)
        {
            return;
        }
        let mut pods: Vec<u32> = Vec::new();
        for member in &group.members {
            pods.extend(std::iter::repeat_n(member.cells, member.pods as usize));
        }
        for nodes in self.free_by_chain(group) {
            assert!(!fits(&pods, &mut nodes.clone()), "{group:?} fits {nodes:?}");
        }
    }

    /// Free devices of each node of the virtual cluster, by chain, from configuration and records alone.
    fn free_by_chain(&self, group: &GroupRequest) -> Vec<Vec<u32>> {
        let vc = &group.key.virtual_cluster;
        let spec = &self.config.virtual_clusters[vc];
        let mut used: BTreeSet<(String, usize)> = BTreeSet::new();
        for record in self.cells.records() {
            let holds =
                record.lazy_preemption.is_none() && record.request.priority >= group.priority;
            for pod in record.pods.iter().filter(|_| holds) {
                let Some(cell) = &pod.cell else { continue };
                used.extend(list(&pod.leaves).into_iter().map(|leaf| (cell.clone(), leaf)));
            }
        }
        let (mut chains, mut number) = (BTreeMap::<&str, Vec<u32>>::new(), 0);
        let mut cells: Vec<(String, String, String)> = Vec::new();
        for of in &spec.virtual_cells {
            for _ in 0..of.cell_number {
                let mut types = of.cell_type.split('.');
                let top = types.next().expect("a type");
                let last = types.next_back().unwrap_or(top);
                cells.push((format!("{vc}/{number}"), top.to_owned(), last.to_owned()));
                number += 1;
            }
        }
        if let Some(id) = &group.pinned_cell_id {
            let at = spec.pinned_cells.iter().position(|pin| &pin.pinned_cell_id == id);
            cells.clear();
            // Pinned cells of all configurations here are nodes of four devices.
            cells.extend(
                at.map(|at| (format!("{vc}/{}", number + at), String::new(), "NODE".to_owned())),
            );
        }
        for (address, top, last) in &cells {
            let wanted = match group.cell_type.as_deref() {
                Some("GPU") => top != "OTHER",
                Some("CPU") => top == "OTHER",
                _ => true,
            };
            let (leaves, per_node) = match last.as_str() {
                "ROW" => (16, 4),
                "RACK" => (8, 4),
                "NODE" => (4, 4),
                "PAIR" => (2, 2),
                "OTHER" => (3, 3),
                _ => (1, 1),
            };
            for node in (0..leaves).step_by(per_node).filter(|_| wanted) {
                let taken =
                    (node..node + per_node).filter(|&leaf| used.contains(&(address.clone(), leaf)));
                let free = per_node - taken.count();
                chains.entry(top).or_default().push(free as u32);
            }
        }
        chains.into_values().collect()
    }
}

fn nest(request: &mut GroupRequest, rng: &mut impl Rng) {
    let within = |rng: &mut dyn Rng| {
        [None, Some("RACK"), Some("NODE"), Some("OTHER"), Some("PAIR")][rng.next_u32() as usize % 5]
            .map(str::to_owned)
    };
    for member in &mut request.members {
        member.cell_type = [None, None, Some("PAIR"), Some("GPU"), Some("NODE")]
            .choose(rng)
            .expect("some")
            .map(str::to_owned);
    }
    let children = (0..request.members.len())
        .map(|member| NestedGroup {
            within_one_cell: within(rng),
            member: Some(member),
            children: vec![],
        })
        .collect();
    request.nested = Some(NestedGroup { within_one_cell: within(rng), member: None, children });
}

fn list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty() && !part.starts_with('-')) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) =
            (from.parse().expect("a number"), to.parse().expect("a number"));
        numbers.extend(from..=to);
    }
    numbers
}

/// Whether pods can be divided over nodes: every way is tried.
fn fits(pods: &[u32], nodes: &mut Vec<u32>) -> bool {
    let Some((&first, rest)) = pods.split_first() else { return true };
    (0..nodes.len()).any(|at| {
        if nodes[at] < first {
            return false;
        }
        nodes[at] -= first;
        let fits = fits(rest, nodes);
        nodes[at] += first;
        fits
    })
}
