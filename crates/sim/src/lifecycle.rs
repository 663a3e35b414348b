//! How every world begins, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::checker::Checker;
use super::process::WallClock;
use super::rng::SimRng;
use super::{SimReport, reached};
use rcfarm_emulator::{Embedded, Fate, Request, Settings};
use rcfarm_store::Sizes;
use rcfarm_store::failpoints;
use rcfarm_store::time::IdSource;

/// What there is before anybody has done anything.
pub struct Beginning {
    /// All chance.
    pub rng: SimRng,
    /// People's ids; Consul has its own from here, too.
    pub ids: IdSource,
    /// When it is.
    pub start: Instant,
    /// People's clock, which is right.
    pub clock: Arc<WallClock>,
    /// The store, empty.
    pub consul: Embedded,
}

impl Beginning {
    /// That of a seed.
    pub async fn of(seed: u64) -> Beginning {
        // Sleeping once puts the paused clock on a whole millisecond.
        sleep(Duration::from_millis(1)).await;
        let mut rng = SimRng::new(seed);
        let ids = IdSource::from_seed(rng.seed());
        // In half of the worlds a handful of entries makes a tree that is read in parts.
        let asked = *rng.pick(&[0, 3, 100]);
        let handful = Sizes { many: 4, few: 1, asked, little: 0, share: 2 };
        let in_parts = rng.permille(500);
        failpoints::resize(in_parts.then_some(handful));
        let start = Instant::now();
        let consul = Embedded::new(&Settings::default(), &ids);
        // Remembers the past, for stale reads.
        drop(consul.with_faults(Arc::new(|_: &Request<'_>| Fate::DELIVER)));
        Beginning { rng, ids, start, clock: WallClock::new(start), consul }
    }
}

/// Lives until the play is over, or until something happens that must not; then the machines' agents stop.
pub async fn live(
    seed: u64,
    start: Instant,
    checker: &Checker,
    agents: JoinHandle<()>,
    play: impl Future<Output = ()>,
) -> SimReport {
    tokio::select! {
        biased;
        () = checker.violation() => {}
        () = play => {}
    }
    agents.abort();
    let (violation, applied, hash) = checker.result();
    let last = if violation.is_some() { checker.last() } else { Vec::new() };
    let met = reached::take();
    SimReport { seed, violation, applied, hash, lived: start.elapsed(), last, met }
}
