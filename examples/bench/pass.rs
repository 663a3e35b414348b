//! The rows about a scheduler's pass: alone, and in a farm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use rcfarm::batch::bounds::Bounds;
use rcfarm::batch::placing::{VersionedStatus, bookings};
use rcfarm::batch::plan::{BatchObserved, BatchPlan, GroupStatuses, PassMemory, plan};
use rcfarm::batch::queues::Queues;
use rcfarm::batch::writes::revised;
use rcfarm::cluster::queues::{StoredGroup, StoredGroups, StoredQueue};
use rcfarm::placement::NodeLabels;
use rcfarm::placement::capacity::{Fleet, NodeCapacity};
use rcfarm_api::ResourceList;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{ObjectName, PodId};
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord, PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::priority_class::PriorityClasses;
use rcfarm_api::queue::spec::QueueRecord;
use rcfarm_api::scheduler::spec::SchedulerSpec;
use rcfarm_api::{Index, Stored as _, Timestamp, key};
use rcfarm_store::{Op, Query, Reader as _, TxnLimits, Versioned};
use tokio::time::{Instant, sleep};

use crate::fleet;
use crate::jobs::{job, one_pod};
use crate::machine;
use crate::report::Figure;
use crate::rows::{Bench, PATIENCE};

const GROUPS: usize = 10_000;
const SHAPES: usize = 1_000;
const NODES: usize = 5_000;

/// A scheduler's view, without a farm.
struct Passes {
    me: ObjectName,
    spec: SchedulerSpec,
    queues: Queues,
    groups: StoredGroups,
    statuses: GroupStatuses,
    fleet: Fleet,
    memory: PassMemory,
    index: u64,
}

fn amount(text: &str) -> anyhow::Result<ResourceList> {
    Ok(text.parse()?)
}

/// Request of a shape. Alone, each resource is free on some node, but never both.
fn shape(n: usize) -> anyhow::Result<ResourceList> {
    amount(&format!("cpu={}m,memory={}Mi", 4_000 + n, 8_192 + n))
}

impl Passes {
    /// Nodes that are full, half of them of memory and half of processors, each with eight pods, and waiting groups.
    fn new() -> anyhow::Result<Passes> {
        let owner: AllocationOwner = "job/default/other/1".parse()?;
        let mut fleet = Fleet::default();
        let mut labels = NodeLabels::default();
        for n in 0..NODES {
            let capacity = amount("cpu=32,memory=128Gi")?;
            let mut room = NodeCapacity { capacity, ..NodeCapacity::default() };
            // What is free differs from node to node.
            let (cpu, memory) = if n % 2 == 0 { (2_000, 16_000) } else { (3_700, 12_000) };
            for pod in 0..8 {
                let memory = if pod == 0 { memory - n } else { memory };
                let want = amount(&format!("cpu={cpu}m,memory={memory}Mi"))?;
                let pod: PodId = format!("pod-{pod}").parse()?;
                room.allocate(&pod, &owner, &want).map_err(|e| anyhow::anyhow!("{e}"))?;
            }
            fleet.node_capacities.insert(fleet::node(n), room);
            labels.nodes.insert(fleet::node(n), BTreeMap::from([("pool".into(), "a".into())]));
        }
        fleet.labels = Arc::new(labels);
        let queue: StoredQueue = made(1, Ok(QueueRecord::default()));
        let queues =
            Queues::of(&[("default".parse()?, Arc::new(queue))].into(), PriorityClasses::default());
        let mut passes = Passes {
            me: "default".parse()?,
            spec: SchedulerSpec::default(),
            queues,
            groups: BTreeMap::new(),
            statuses: GroupStatuses::new(),
            fleet,
            memory: PassMemory::default(),
            index: 1,
        };
        for n in 0..GROUPS {
            passes.add(&format!("g-{n:05}"), shape(n % SHAPES)?)?;
        }
        Ok(passes)
    }

    fn add(&mut self, name: &str, resources: ResourceList) -> anyhow::Result<()> {
        self.index += 1;
        let task = TaskSpec {
            name: "main".to_owned(),
            replicas: 1,
            resources,
            node_selector: String::new(),
            ports: 0,
        };
        let spec = PodGroupSpec { tasks: vec![task], ..PodGroupSpec::default() };
        let group: StoredGroup = made(self.index, Ok(PodGroupRecord::new(spec)));
        let id: GroupId = format!("default/{name}").parse()?;
        self.groups.insert(id, Arc::new(group));
        Ok(())
    }

    fn pass(&mut self) -> (BatchPlan, Duration) {
        let (down, unreadable) = (BTreeSet::new(), BTreeSet::new());
        let seen = BatchObserved {
            me: &self.me,
            spec: &self.spec,
            queues: &self.queues,
            groups: &self.groups,
            statuses: &self.statuses,
            unreadable: &unreadable,
            set_aside: &BTreeMap::new(),
            fleet: &self.fleet,
            cells: None,
            answers: None,
            down: &down,
            draining: &BTreeMap::new(),
            may_forget: true,
            with_orphaned: false,
            now: Timestamp::UNIX_EPOCH,
            latest: Index(self.index),
            bounds: Bounds::of(500, 200_000, TxnLimits::default()),
        };
        let start = Instant::now();
        let plan = plan(&seen, &mut self.memory);
        (plan, start.elapsed())
    }

    /// Takes over the changes, as committed.
    fn commit(&mut self, plan: &BatchPlan) -> anyhow::Result<()> {
        for change in plan.changes.iter().chain(&plan.message_changes) {
            let Some(after) = &change.after else { continue };
            self.index += 1;
            let value: PodGroupStatus = revised(change, after);
            let known: VersionedStatus = made(self.index, Arc::new(value));
            self.statuses.insert(change.id.clone(), known);
            let there = &self.fleet.node_capacities;
            let made = bookings(there, &change.id, &change.release, &change.allocate);
            for booking in made.map_err(anyhow::Error::msg)? {
                self.fleet.node_capacities.insert(booking.node, booking.room);
            }
        }
        Ok(())
    }

    /// Writes a group's record again.
    fn touch(&mut self, n: usize) -> anyhow::Result<()> {
        self.index += 1;
        let id: GroupId = format!("default/g-{n:05}").parse()?;
        if let Some(group) = self.groups.get_mut(&id) {
            let value = group.value.clone();
            *group =
                Arc::new(StoredGroup { index: Index(self.index), created: group.created, value });
        }
        Ok(())
    }

    /// Frees what a pod of a node has.
    fn free(&mut self, node: usize) {
        let mut room = self.fleet.node_capacities.of(&fleet::node(node)).clone();
        room.allocated.pods.pop_first();
        self.fleet.node_capacities.insert(fleet::node(node), room);
    }

    /// Compares each shape with the nodes until one has room, as without an index.
    fn exhaustive(&self) -> anyhow::Result<(usize, Duration)> {
        let (pod, owner): (PodId, AllocationOwner) =
            ("main-0".parse()?, "job/default/a/1".parse()?);
        let start = Instant::now();
        let mut fitting = 0;
        for n in 0..SHAPES {
            let want = shape(n)?;
            let has_room = |room: &NodeCapacity| room.insufficient(&pod, &owner, &want).is_none();
            fitting +=
                usize::from(self.fleet.node_capacities.iter().any(|(_, room)| has_room(room)));
        }
        Ok((fitting, start.elapsed()))
    }
}

fn made<T>(index: u64, value: T) -> Versioned<T> {
    Versioned { index: Index(index), created: Index(index), value }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    ms(times[times.len() / 2])
}

/// Passes over waiting groups, without Consul.
pub fn alone() -> anyhow::Result<Vec<Figure>> {
    let mut passes = Passes::new()?;
    let mut first = Vec::new();
    // Each pass says why 64 groups wait, until all are told.
    loop {
        let (plan, took) = passes.pass();
        first.push(took);
        passes.commit(&plan)?;
        if !plan.more && plan.message_changes.is_empty() && plan.changes.is_empty() {
            break;
        }
    }
    let (fitting, exhaustive) = passes.exhaustive()?;
    if fitting > 0 {
        bail!("{fitting} shapes fit: the row measures groups that wait");
    }
    let mut anew = Vec::new();
    for n in 0..20 {
        passes.touch(n)?;
        anew.push(passes.pass().1);
    }
    let mut elsewhere = Vec::new();
    let mut admitting = Vec::new();
    for n in 0..20 {
        // A pod of a controller is replaced by a larger one.
        let owner: AllocationOwner = "rc/8f3ac1bc-b1d8-4ffe-8dd3-0d3c3a1b5d5f".parse()?;
        let mut room = passes.fleet.node_capacities.of(&fleet::node(n)).clone();
        let taken = room.allocate(&"rc".parse()?, &owner, &amount("cpu=1m")?);
        taken.map_err(|e| anyhow::anyhow!("{e}"))?;
        passes.fleet.node_capacities.insert(fleet::node(n), room);
        elsewhere.push(passes.pass().1);
    }
    for n in 0..20 {
        passes.free(100 + 2 * n);
        let (plan, took) = passes.pass();
        if plan.changes.is_empty() {
            bail!("nothing was admitted");
        }
        admitting.push(took);
        passes.commit(&plan)?;
    }
    let of =
        |what: &str| format!("a pass, {GROUPS} waiting of {SHAPES} shapes, {NODES} nodes: {what}");
    let longest = first.iter().max().copied().unwrap_or_default();
    Ok(vec![
        Figure::new(of("the first ones, longest"), ms(longest), "ms").at_most(20.0),
        Figure::new(
            of("the first ones, all until nothing is left to do"),
            ms(first.iter().sum()),
            "ms",
        ),
        Figure::new(of("number of the first ones"), first.len() as f64, ""),
        Figure::new(
            of("a group's record has changed, and nothing follows, p50"),
            median(anew),
            "ms",
        ),
        Figure::new(of("a node has less room, p50"), median(elsewhere), "ms"),
        Figure::new(of("a node has more room and one is admitted, p50"), median(admitting), "ms")
            .at_most(20.0),
        Figure::new(of("each shape compared with each node, no index"), ms(exhaustive), "ms"),
    ])
}

impl Bench {
    /// Jobs that fit nowhere wait while another is submitted that fits.
    pub async fn waiting(&self, nodes: usize, shapes: usize) -> anyhow::Result<Vec<Figure>> {
        let fake = self.nodes(nodes, 2).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        let write = |n: usize| {
            let cpu = format!("{}m", 2_001 + n);
            let value = one_pod(&cpu).into();
            Op::Set { key: key::job(&job(n)), value, flags: 0 }
        };
        fleet::write_all(&self.store, (0..shapes).map(write).collect()).await?;
        // Until all say why they wait.
        let give_up = Instant::now() + PATIENCE;
        loop {
            sleep(Duration::from_secs(1)).await;
            farm.must_run()?;
            let statuses = self.store.list(&key::pod_group_statuses(), Query::PLAIN).await?.value;
            let said = |entry: &&rcfarm_store::Entry| {
                let status = PodGroupStatus::decode(&entry.value).unwrap_or_default();
                !status.message.is_empty()
            };
            if statuses.iter().filter(said).count() >= shapes {
                break;
            }
            if Instant::now() > give_up {
                bail!("{} of {shapes} groups have a status", statuses.len());
            }
        }
        let before = (farm.counters().await?, machine::cpu(farm.pid()?)?);
        let start = Instant::now();
        let (mut waits, mut n) = (Vec::new(), shapes);
        while start.elapsed() < Duration::from_secs(self.idle) {
            let value = one_pod("100m").into();
            let submitted = Instant::now();
            fleet::write_all(
                &self.store,
                vec![Op::Set { key: key::job(&job(n)), value, flags: 0 }],
            )
            .await?;
            while fleet::intents(&self.store).await? <= waits.len() {
                if submitted.elapsed() > PATIENCE {
                    bail!("a job that fits was not placed");
                }
                sleep(Duration::from_millis(20)).await;
            }
            waits.push(submitted.elapsed());
            n += 1;
            sleep(Duration::from_secs(5)).await;
        }
        let seconds = start.elapsed().as_secs_f64();
        let after = farm.counters().await?;
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        let (_, most) = machine::memory(farm.pid()?)?;
        farm.stop().await?;
        fake.stop().await?;
        let of = |what: &str| format!("{shapes} waiting shapes, {nodes} nodes: {what}");
        let late = after.late - before.0.late;
        Ok(vec![
            Figure::new(of("sessions lost"), (after.lost - before.0.lost) as f64, "").at_most(0.0),
            Figure::new(of("heartbeats"), (after.beats - before.0.beats) as f64, ""),
            Figure::new(of("heartbeats more than 250 ms late"), late as f64, "").at_most(0.0),
            Figure::new(of("watched for"), seconds, "s"),
            Figure::new(of("processor, farm"), 100.0 * cpu / seconds, "% of a core"),
            Figure::new(of("RSS, most"), most, "MiB"),
            Figure::new(of("a job that fits, submit → intent, p50"), median(waits), "ms"),
        ])
    }
}
