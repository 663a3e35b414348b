//! Long computations, kept off the workers of the async runtime.

use std::sync::LazyLock;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// From this many items on, a computation is worth the hand-over of a worker, which takes some ten microseconds.
const MANY: usize = 512;

/// Computations at a time: one per processor.
static SLOTS: LazyLock<Semaphore> = LazyLock::new(|| {
    Semaphore::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
});

/// Runs a computation over `items` items. A long one first hands the tasks of its worker to another thread, so that they
/// do not wait for it. Other futures of the same task do wait.
///
/// On a single-threaded runtime, such as a simulation's, it runs in place: a seed repeats.
pub async fn offload<T>(items: usize, compute: impl FnOnce() -> T + Send) -> T {
    let has_workers = Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if items < MANY || !has_workers {
        return compute();
    }
    let _slot = SLOTS.acquire().await;
    // Unlike `spawn_blocking`, this lets the computation borrow its input.
    tokio::task::block_in_place(compute)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn long_computation_leaves_the_worker_to_other_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let (sender, receiver) = std::sync::mpsc::channel();
        let computed = runtime.unwrap().block_on(async move {
            tokio::spawn(async move {
                // Runs on the only worker, as does the computation that waits for it.
                let other = tokio::spawn(async move { sender.send(7) });
                let received = offload(MANY, move || receiver.recv_timeout(LIMIT)).await;
                other.await.unwrap().unwrap();
                received
            })
            .await
        });
        assert_eq!(computed.unwrap(), Ok(7));
    }
}
