//! Where a session keeper runs: on the caller's runtime, or on a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{future, io, thread};

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::heartbeats::Heartbeats;
use crate::time::monotonic;
use crate::{Store, failpoints};

/// A daemon whose runtime ran no task for this long counts as hung, and its session ends. Planning and decoding leave
/// workers free, so a busy daemon does not come near it.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// Where a session keeper runs, and the client by which it reaches Consul.
///
/// A daemon gives its keeper a thread with its own runtime and its own HTTP connections. No work on the daemon's runtime
/// can then delay a heartbeat. All requests of that client are sent on that thread: a connection is driven by the
/// runtime that opened it.
#[derive(Clone)]
pub struct KeeperRuntime {
    store: Arc<dyn Store>,
    thread: Option<Arc<KeeperThread>>,
    heartbeats: Arc<Heartbeats>,
    hung_after: Duration,
}

/// What tells a keeper on its own thread that the daemon's runtime still runs tasks.
pub(super) struct HangWatch {
    /// Runs on the daemon's runtime.
    pub(super) ticking: Option<AbortOnDropHandle<()>>,
    /// Runs with the keeper. Resolves when the other one has not run for too long.
    pub(super) hung: BoxFuture<'static, ()>,
}

impl KeeperRuntime {
    /// On the runtime of the caller. For tests and simulations, whose time is virtual.
    pub fn shared(store: Arc<dyn Store>) -> KeeperRuntime {
        KeeperRuntime { store, thread: None, heartbeats: Arc::default(), hung_after: HUNG_AFTER }
    }

    /// On a thread of its own. Nothing else may send requests by `store`.
    ///
    /// # Errors
    /// Fails if the operating system gives no thread or no event queue.
    pub fn own_thread(store: Arc<dyn Store>) -> io::Result<KeeperRuntime> {
        let thread = Some(Arc::new(KeeperThread::start()?));
        Ok(KeeperRuntime { store, thread, heartbeats: Arc::default(), hung_after: HUNG_AFTER })
    }

    /// Ends the session of a daemon whose runtime ran no task for this long (30 s unless set). For tests.
    #[must_use]
    pub fn hung_after(self, limit: Duration) -> KeeperRuntime {
        KeeperRuntime { hung_after: limit, ..self }
    }

    /// Watches the runtime of the caller. On a shared runtime a keeper hangs with its daemon, so nothing is watched.
    pub(super) fn watch_caller(&self) -> HangWatch {
        if self.thread.is_none() {
            return HangWatch { ticking: None, hung: Box::pin(future::pending()) };
        }
        let (limit, last) = (self.hung_after, Arc::new(Mutex::new(monotonic())));
        let stamped = last.clone();
        let ticking = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                *stamped.lock().unwrap_or_else(PoisonError::into_inner) = monotonic();
                sleep(limit / 10).await;
            }
        }));
        let hung = Box::pin(async move {
            while monotonic() - *last.lock().unwrap_or_else(PoisonError::into_inner) < limit {
                sleep(limit / 10).await;
            }
        });
        HangWatch { ticking: Some(ticking), hung }
    }

    /// How late heartbeats were answered.
    pub fn heartbeats(&self) -> Arc<Heartbeats> {
        self.heartbeats.clone()
    }

    /// The keeper's client. Its requests must be sent by [`KeeperRuntime::run`] or [`KeeperRuntime::spawn`].
    pub(super) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Starts a task, which ends when the handle is dropped.
    pub(super) fn spawn(&self, task: BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(match &self.thread {
            Some(thread) => thread.handle.spawn(task.in_current_span()),
            None => tokio::spawn(failpoints::task(task)),
        })
    }

    /// Runs a task and waits for its result. Dropping the future ends the task.
    pub(super) async fn run<T: Send + 'static>(&self, task: BoxFuture<'static, T>) -> T {
        let Some(thread) = &self.thread else { return task.await };
        match AbortOnDropHandle::new(thread.handle.spawn(task.in_current_span())).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The thread ends with the last handle to it, and this is one.
                Err(error) => unreachable!("the keeper's thread has ended: {error}"),
            },
        }
    }
}

/// A thread that drives a single-threaded runtime until it is dropped.
struct KeeperThread {
    handle: Handle,
    stop: CancellationToken,
}

impl KeeperThread {
    fn start() -> io::Result<KeeperThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        thread::Builder::new()
            .name("session-keeper".to_owned())
            .spawn(move || runtime.block_on(stopped.cancelled()))?;
        Ok(KeeperThread { handle, stop })
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
