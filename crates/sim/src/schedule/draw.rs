//! Draws the schedule of a seed.

use std::time::Duration;

use super::action::SimAction;
use super::builder::ScheduleBuilder;
use super::recorded::{FarmDesign, Schedule, Setup, Timed};
use super::{cells, flows, jobs, services};
use crate::faults::NetworkFaults;
use crate::mix::{Mix, Scenario};
use crate::rng::SimRng;
use crate::workload::documents::KINDS;
use crate::workload::schedules::BEGINNINGS;

/// Of a thousand worlds, this many have a hostile tenant.
const HOSTILE: u32 = 120;
/// Of a thousand worlds with replication controllers, in this many users take pods away by hand.
const DEALLOCATED: u32 = 250;
/// Of a thousand worlds with replication controllers, in this many users relabel nodes and lower counts.
const SCALED_OFF_NODES: u32 = 250;
/// Of a thousand worlds with replication controllers, in this many users update manifests in order.
const UPDATED: u32 = 250;
/// Of a thousand worlds with flows, this many have arrays, jobs that wait for these, and dispatches.
const SWEPT: u32 = 400;
/// Of a thousand worlds that begin before summer time does, this many see its end, too.
const SECOND_CHANGE: u32 = 500;
/// Jumps of clocks, in seconds, where no timer of a job depends on them.
const LONG_JUMPS: &[i64] = &[-3600, -30, 30, 86_400];
/// Jumps where one does.
const SHORT_JUMPS: &[i64] = &[-20, -5, 5, 20];

impl Schedule {
    #[must_use]
    pub fn draw(seed: u64, scenario: Scenario) -> Schedule {
        let mix = Mix::of(scenario, seed);
        let mut rng = SimRng::new(seed);
        let chance = rng.seed();
        // In half of the worlds, trees with few entries are read in parts.
        let asked = *rng.pick(&[0, 3, 100]);
        let read_in_parts = rng.permille(500).then_some(asked);
        let farms = farms(&mut rng, mix);
        let network = network(&mut rng);
        let poisoned = mix.services && rng.permille(200);
        let nodes = if mix.services { 7 } else { 4 };
        // With replication controllers, the remaining nodes must suffice for all jobs.
        let lost = !mix.services && rng.permille(250) && !mix.cells;
        let lost = lost.then(|| rng.below(nodes));
        let healed_at = match mix {
            // Until two scheduled times of a CronJob have passed.
            Mix { flows: true, .. } => 100,
            Mix { cells: true, .. } => 50,
            Mix { services: true, .. } => 55,
            _ => 36,
        };
        let healed_at = Duration::from_secs(healed_at);
        let mut hideable = Vec::new();
        if mix.services {
            hideable.extend(services::hideable());
        }
        if mix.jobs {
            hideable.extend(jobs::hideable());
        }
        if mix.flows {
            hideable.extend(flows::hideable());
        }
        if mix.cells {
            hideable.extend(cells::hideable());
        }
        let mut builder = ScheduleBuilder {
            rng: rng.fork(),
            farms: farms.len(),
            nodes,
            healed_at,
            jumps: if mix.jobs { SHORT_JUMPS } else { LONG_JUMPS },
            hideable,
            actions: Vec::new(),
        };
        if mix.services {
            // With jobs there are fewer, so that jobs make progress.
            let scenes = (14 + builder.rng.below(14)) / if mix.jobs { 2 } else { 1 };
            (0..scenes).for_each(|_| builder.rc_scene());
        }
        let jobs = if mix.cells {
            builder.cells()
        } else {
            let is_narrow = !mix.services && !mix.flows;
            let kinds = if mix.jobs { builder.jobs(is_narrow) } else { Vec::new() };
            kinds.into_iter().map(|(kind, n)| (KINDS[kind].to_owned(), n)).collect()
        };
        // From a stream of their own, so that they change nothing else.
        builder.rng = SimRng::new(seed ^ 0x0061_6765_6e74);
        let agents = agents(&mut builder.rng, mix, lost);
        if !agents.is_empty() {
            builder.agents(&agents);
        }
        builder.rng = SimRng::new(seed ^ 0x686f_7374_696c_6531);
        if builder.rng.permille(HOSTILE) {
            builder.hostile(mix);
        }
        builder.rng = SimRng::new(seed ^ 0x6465_616c_6c6f);
        if mix.services && builder.rng.permille(DEALLOCATED) {
            builder.deallocations();
        }
        builder.rng = SimRng::new(seed ^ 0x006f_6666_6e6f_6465);
        if mix.services && builder.rng.permille(SCALED_OFF_NODES) {
            builder.scalings_off_nodes();
        }
        builder.rng = SimRng::new(seed ^ 0x0075_7064_6174_6573);
        if mix.services && builder.rng.permille(UPDATED) {
            builder.updates();
        }
        builder.rng = SimRng::new(seed ^ 0x666c_6f77_7361_6374);
        let begins = if mix.flows { *builder.rng.pick(&BEGINNINGS) } else { 0 };
        // From a stream of its own, so that it changes nothing else.
        let goes_on_at = SimRng::new(seed ^ 0x7365_636f_6e64).permille(SECOND_CHANGE);
        let goes_on_at = (goes_on_at && begins == BEGINNINGS[0]).then_some(BEGINNINGS[1]);
        let restores = agents.is_empty() && lost.is_none();
        let (crons, flows) = if mix.flows { builder.flows(restores) } else { Default::default() };
        // From a stream of their own, so that they change nothing else.
        builder.rng = SimRng::new(seed ^ 0x7377_6565_7073);
        let is_swept = builder.rng.permille(SWEPT) && mix.flows;
        let sweeps = if is_swept { builder.sweeps() } else { 0 };
        builder.rng = SimRng::new(seed ^ 0x686f_7374_696c_6532);
        if builder.rng.permille(HOSTILE) {
            builder.hostile_owners(mix);
        }
        let timed = |(at, act): (Duration, SimAction)| Timed { at, act };
        let actions = builder.build().into_iter().map(timed).collect();
        let setup = Setup {
            read_in_parts,
            farms,
            network,
            nodes,
            agents,
            poisoned,
            lost,
            jobs,
            crons,
            flows,
            sweeps,
            begins,
            goes_on_at,
            healed_at,
        };
        Schedule { found: String::new(), chance, mix, setup, actions }
    }
}

/// Two or three farms. With replication controllers, two claim everything and one claims a part. Sometimes one cannot
/// have a check, or uses small transactions.
fn farms(rng: &mut SimRng, mix: Mix) -> Vec<FarmDesign> {
    let part = if mix.services { "tier=web" } else { "" };
    let farms = [("a", ""), ("b", ""), ("c", part)];
    let mut farms = farms.map(|(name, selector)| FarmDesign::new(name, selector)).to_vec();
    if !mix.services {
        farms.truncate(2 + usize::from(rng.permille(300)));
    }
    if rng.permille(100) {
        pick(rng, &mut farms).session_ttl = Duration::from_secs(10);
    }
    if mix.jobs && rng.permille(500) {
        // Gangs then need several transactions.
        let ops = *rng.pick(&[12, 14, 20]);
        farms.iter_mut().for_each(|farm| farm.ops = Some(ops));
    } else if mix.services && rng.permille(200) {
        // As with an older Consul: everything needs more transactions.
        pick(rng, &mut farms).ops = Some(9);
    }
    if rng.permille(300) {
        pick(rng, &mut farms).is_newer = true;
    }
    farms
}

/// In a quarter of the worlds the real agent runs a node, one that says what it has. More agents would take much time.
fn agents(rng: &mut SimRng, mix: Mix, lost: Option<usize>) -> Vec<usize> {
    let chosen = *rng.pick(if mix.services { &[0, 1, 3, 4] } else { &[0, 1, 2, 3] });
    if rng.permille(250) && lost != Some(chosen) && !mix.cells { vec![chosen] } else { Vec::new() }
}

fn pick<'d>(rng: &mut SimRng, farms: &'d mut [FarmDesign]) -> &'d mut FarmDesign {
    let n = rng.below(farms.len());
    &mut farms[n]
}

fn network(rng: &mut SimRng) -> NetworkFaults {
    let calm = |rng: &mut SimRng, most: usize| u32::try_from(rng.below(most)).unwrap_or(0);
    NetworkFaults {
        latency: Duration::from_millis(1 + rng.below(40) as u64),
        lost: calm(rng, 15),
        reply_lost: calm(rng, 15),
        late: calm(rng, 10),
        stale: calm(rng, 15),
        index_reset: calm(rng, 10),
        overloaded: calm(rng, 10),
        ..NetworkFaults::default()
    }
}
