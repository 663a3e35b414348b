//! Injects faults in an order that the seed decides: one sequence for servers and one for farms, concurrently.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcfarm_store::Store;
use rcfarm_store::time::IdSource;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, SERVERS};
use super::farms::Farms;

/// Number of injections per fault.
pub type Injected = BTreeMap<&'static str, usize>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerFault {
    KillLeader,
    KillFollower,
    RestartFollower,
    /// The leader is in the minority; when it resumes it is deposed and does not know it yet.
    FreezeLeader,
    FreezeFollower,
    /// No majority, so no leader.
    FreezeTwo,
}

impl ServerFault {
    const ALL: [(ServerFault, &'static str); 6] = [
        (ServerFault::KillLeader, "leader killed"),
        (ServerFault::FreezeLeader, "leader frozen"),
        (ServerFault::KillFollower, "follower killed"),
        (ServerFault::FreezeFollower, "follower frozen"),
        (ServerFault::RestartFollower, "follower restarted"),
        (ServerFault::FreezeTwo, "majority frozen"),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FarmFault {
    Kill,
    Stop,
    /// Longer than the TTL of its check.
    Freeze,
    /// As by an operator, while the farm runs.
    DestroySession,
}

impl FarmFault {
    const ALL: [(FarmFault, &'static str); 4] = [
        (FarmFault::Kill, "farm killed"),
        (FarmFault::Freeze, "farm frozen"),
        (FarmFault::Stop, "farm stopped"),
        (FarmFault::DestroySession, "session destroyed"),
    ];
}

/// Yields all elements in random order, then all again.
struct Bag<'i, T> {
    all: Vec<T>,
    left: Vec<T>,
    ids: &'i IdSource,
}

impl<'i, T: Copy> Bag<'i, T> {
    fn new(all: &[T], ids: &'i IdSource) -> Self {
        Bag { all: all.to_vec(), left: Vec::new(), ids }
    }

    fn draw(&mut self) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        self.left.swap_remove(below(self.ids, self.left.len()))
    }
}

fn below(ids: &IdSource, n: usize) -> usize {
    usize::try_from(ids.below(n as u64)).unwrap()
}

/// A time between `seconds` and twice as much.
fn about(ids: &IdSource, seconds: u64) -> Duration {
    ids.jitter(Duration::from_secs(seconds), 1.0)
}

/// Injects server faults; each ends before the next begins.
pub async fn of_servers(
    cluster: &mut Cluster,
    ids: &IdSource,
    injected: &Mutex<Injected>,
    over: &CancellationToken,
) {
    let mut bag = Bag::new(&ServerFault::ALL, ids);
    loop {
        sleep(about(ids, 2)).await;
        if over.is_cancelled() {
            return;
        }
        let Some(leader) = cluster.leader().await else { continue };
        let follower = (leader + 1 + below(ids, SERVERS - 1)) % SERVERS;
        let (fault, name) = bag.draw();
        match fault {
            ServerFault::KillLeader | ServerFault::KillFollower => {
                let n = if fault == ServerFault::KillLeader { leader } else { follower };
                cluster.servers[n].kill();
                sleep(about(ids, 2)).await;
                cluster.servers[n].until_ready().await;
            }
            ServerFault::RestartFollower => {
                cluster.servers[follower].stop().await;
                cluster.servers[follower].until_ready().await;
            }
            ServerFault::FreezeLeader => freeze(cluster, ids, &[leader]).await,
            ServerFault::FreezeFollower => freeze(cluster, ids, &[follower]).await,
            ServerFault::FreezeTwo => freeze(cluster, ids, &[leader, follower]).await,
        }
        *injected.lock().unwrap().entry(name).or_default() += 1;
    }
}

async fn freeze(cluster: &mut Cluster, ids: &IdSource, servers: &[usize]) {
    for n in servers {
        cluster.servers[*n].signal("STOP");
    }
    sleep(about(ids, 3)).await;
    for n in servers {
        cluster.servers[*n].signal("CONT");
    }
    for n in servers {
        cluster.servers[*n].until_ready().await;
    }
}

/// Injects farm faults; each ends before the next begins. Returns violations by farms.
pub async fn of_farms(
    farms: &mut Farms,
    stores: &[Arc<dyn Store>],
    ids: &IdSource,
    injected: &Mutex<Injected>,
    over: &CancellationToken,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut bag = Bag::new(&FarmFault::ALL, ids);
    loop {
        sleep(about(ids, 2)).await;
        for n in 0..farms.len() {
            if !farms.runs(n) {
                wrong.push(format!("farm {} ended by itself", farms.name(n)));
                farms.start_one(n);
            }
        }
        if over.is_cancelled() {
            return wrong;
        }
        let n = below(ids, farms.len());
        let (fault, name) = bag.draw();
        match fault {
            FarmFault::Kill => {
                farms.kill(n);
                sleep(about(ids, 1)).await;
                farms.start_one(n);
            }
            FarmFault::Stop => {
                if !farms.stop(n).await {
                    wrong.push(format!("farm {} was told to stop and failed", farms.name(n)));
                }
                farms.start_one(n);
            }
            FarmFault::Freeze => {
                farms.signal(n, "STOP");
                sleep(about(ids, 4)).await;
                farms.signal(n, "CONT");
            }
            FarmFault::DestroySession => {
                if !destroy_session(stores, &farms.name(n)).await {
                    continue;
                }
            }
        }
        *injected.lock().unwrap().entry(name).or_default() += 1;
    }
}

/// Destroys a farm's session through the first server that answers.
async fn destroy_session(stores: &[Arc<dyn Store>], farm: &str) -> bool {
    for store in stores {
        let attempt = async {
            let sessions = store.sessions().await.ok()?.value;
            let of_farm = sessions.iter().find(|s| s.name.split(' ').next_back() == Some(farm))?;
            store.destroy_session(&of_farm.id).await.ok()
        };
        if let Ok(Some(())) = timeout(Duration::from_secs(2), attempt).await {
            return true;
        }
    }
    false
}
