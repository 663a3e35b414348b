//! How long a decision takes: single pods and gangs, on 512 and 4,096 nodes of eight devices.
//!
//!     cargo run --release -p rcfarm-cells --example decide
//!
//! Each row plans and commits groups until the cluster is nearly full, and frees groups in between, as a queue would. Times
//! are those of the processor that the thread used: other processes of the machine do not count.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rcfarm_cells::request::{AffinityGroupMemberSpec, AffinityGroupSpec, PodSchedulingSpec};
use rcfarm_cells::{
    CellConfig, CellDecision, CellHealthiness, CellScheduler, GroupKey, PodRequest,
};
use rustix::time::{ClockId, clock_gettime};

fn config(racks: usize, per_rack: usize) -> CellConfig {
    let mut text = format!(
        "
physicalCluster:
  cellTypes:
    SWITCH: {{childCellType: GPU, childCellNumber: 2}}
    SOCKET: {{childCellType: SWITCH, childCellNumber: 2}}
    NODE: {{childCellType: SOCKET, childCellNumber: 2, isNodeLevel: true}}
    RACK: {{childCellType: NODE, childCellNumber: {per_rack}}}
  physicalCells:
"
    );
    for rack in 0..racks {
        text += "  - cellType: RACK\n    cellChildren:\n";
        for node in 0..per_rack {
            text += &format!("    - cellAddress: node-{rack}-{node}\n");
        }
    }
    let (half, rest) = (racks / 2, (racks - racks / 2) * per_rack);
    text += &format!(
        "virtualClusters:\n  A: {{virtualCells: [{{cellType: RACK, cellNumber: {half}}}]}}\n  B: {{virtualCells: \
         [{{cellType: RACK.NODE, cellNumber: {rest}}}]}}\n"
    );
    CellConfig::parse(&text).expect("it can be read")
}

fn request(vc: &str, group: &str, priority: i64, pods: i64, leaves: i64) -> PodRequest {
    let spec = PodSchedulingSpec {
        virtual_cluster: vc.to_owned(),
        priority,
        leaf_cell_type: "GPU".to_owned(),
        leaf_cell_number: leaves,
        ignore_k8s_suggested_nodes: true,
        affinity_group: Some(AffinityGroupSpec {
            name: group.to_owned(),
            members: vec![AffinityGroupMemberSpec { pod_number: pods, leaf_cell_number: leaves }],
        }),
        ..PodSchedulingSpec::default()
    };
    spec.request("bench", group).expect("it is legal")
}

/// Processor time of this thread.
struct CpuTime(Duration);

impl CpuTime {
    fn now() -> CpuTime {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        CpuTime(Duration::try_from(now).expect("it is positive"))
    }

    fn elapsed(&self) -> Duration {
        CpuTime::now().0.saturating_sub(self.0)
    }
}

struct Row {
    plans: Vec<Duration>,
    commits: Vec<Duration>,
}

fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn run(config: &CellConfig, vc: &str, priority: i64, pods: i64, leaves: i64, bad: usize) -> Row {
    let mut cells = CellScheduler::new(Arc::new(config.validate().expect("it is legal")));
    let nodes: Vec<String> = cells.model().nodes().map(str::to_owned).collect();
    cells.set_nodes(nodes.iter().enumerate().map(|(n, node)| {
        let health = if n % 100 < bad { CellHealthiness::Bad } else { CellHealthiness::Healthy };
        (node.as_str(), health)
    }));
    let devices = nodes.len() as i64 * 8 / 2;
    let limit = (devices * 8 / 10 / (pods * leaves)).max(1) as usize;
    let mut row = Row { plans: Vec::new(), commits: Vec::new() };
    let mut running: Vec<GroupKey> = Vec::new();
    for n in 0..limit.clamp(200, 3000) {
        if running.len() >= limit {
            // Spread over the cluster: every seventh group, in turn.
            let key = running.remove(n * 7 % running.len());
            let start = CpuTime::now();
            cells.delete(&key);
            row.commits.push(start.elapsed());
        }
        let name = format!("g{n}");
        let request = request(vc, &name, priority, pods, leaves);
        let start = CpuTime::now();
        let decision = cells.plan(&request, &name, None).expect("it is legal");
        row.plans.push(start.elapsed());
        if let CellDecision::Bind(plan) | CellDecision::Preempt(plan) = decision {
            let start = CpuTime::now();
            cells.commit(&plan, &name, Timestamp::UNIX_EPOCH).expect("nothing has changed");
            row.commits.push(start.elapsed());
            running.push(plan.key.clone());
        }
    }
    row
}

fn main() {
    println!(
        "| nodes | virtual cluster | group | bad nodes | plan p50 ms | p99 | max | commit p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (racks, per_rack) in [(128, 4), (1024, 4)] {
        let config = config(racks, per_rack);
        for (vc, priority) in [("A", 0), ("B", 0), ("B", -1)] {
            for (pods, leaves) in [(1, 1), (1, 8), (64, 8), (64, 3)] {
                for bad in [0, 3] {
                    let mut row = run(&config, vc, priority, pods, leaves, bad);
                    println!(
                        "| {} | {vc}{} | {pods} × {leaves} | {bad} % | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
                        racks * per_rack,
                        if priority < 0 { ", opportunistic" } else { "" },
                        percentile(&mut row.plans, 50),
                        percentile(&mut row.plans, 99),
                        percentile(&mut row.plans, 100),
                        percentile(&mut row.commits, 50),
                        percentile(&mut row.commits, 99),
                    );
                }
            }
        }
    }
}
