//! Failpoints for the simulation: safety layers that it can switch off, to see that their absence is
//! noticed, tasks that it can hold still, as SIGSTOP does, and how large a large tree is. Without the feature
//! `failpoints` every function here is empty.

/// A safety layer that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failpoint {
    /// Transactions carry no fence.
    NoFence,
    /// The local deadline never passes.
    NoDeadline,
    /// An epoch whose session is gone goes on.
    DeadSessionKept,
    /// Locks outlive their session.
    LockOutlivesSession,
    /// A record relabelled away is kept.
    ClaimKept,
    /// A transaction does not check that the record is as the plan saw it.
    NoRecordGuard,
    /// The status is replaced whatever stands there.
    NoChain,
    /// A write whose answer was lost is taken for one that was not applied, and made again.
    RepeatUnknown,
    /// Pods' labels are written whatever stands there.
    NoLabelGuard,
    /// Intents are written whatever stands there.
    NoIntentGuard,
    /// A pod is removed without a check that it still is the record's own.
    NoOwnIdCheck,
    /// An owner does not count its own transactions that its trees do not show yet.
    OwnWritesForgotten,
    /// A new owner goes by trees that were read before it claimed.
    StaleTakeOver,
    /// A tree that became suddenly much smaller is believed.
    NoEmptinessGuard,
    /// Disabled records are worked on.
    DisabledIgnored,
    /// A healthy pod is moved although others are not.
    TransferBlind,
    /// The declared minimum of healthy pods is ignored.
    NoMinimumHealth,
    /// Pods are removed in the order of their nodes' names.
    RemovalUnordered,
    /// Pods are added on nodes that are down or drained.
    UnfitTaken,
    /// What nodes promise is written whatever stands there.
    PromiseUnguarded,
    /// Changes of pods leave no audit record.
    NoAudit,
    /// The audit record is written after the transaction, not in it.
    AuditApart,
    /// A record that keeps failing is tried again at once, for ever.
    NoQuarantine,
    /// A panic of one controller is not contained.
    PanicEscapes,
    /// A command is deleted whether it is there or not.
    CommandRepeated,
    /// Members start without a check that their gang has its place.
    PlaceUnchecked,
    /// A gang's place is given back although it has pods, and whatever its owner has said meanwhile.
    PlacePulled,
    /// A place that was written ahead counts before the nodes have promised it.
    PromiseSkipped,
    /// A restart counts for two.
    CountedTwice,
    /// Members do not wait for the tasks that they depend on.
    DependenciesIgnored,
    /// Members start again without a pause.
    PausesIgnored,
    /// Queues have no limits.
    LimitsIgnored,
    /// In a strict queue what fits goes ahead.
    OrderIgnored,
}

#[cfg(not(feature = "failpoints"))]
mod inert {
    /// Whether a layer is switched off.
    #[must_use]
    pub const fn enabled(_: super::Failpoint) -> bool {
        false
    }

    /// The task of a daemon, as it is.
    pub fn task<F: Future>(future: F) -> F {
        future
    }

    /// What counts as a large tree, where the simulation says so.
    #[must_use]
    pub const fn sizes() -> Option<crate::Sizes> {
        None
    }
}
#[cfg(not(feature = "failpoints"))]
pub use inert::{enabled, sizes, task};

#[cfg(feature = "failpoints")]
mod live {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::task::{Context, Poll, Waker};

    use super::Failpoint;
    use crate::Sizes;

    thread_local! {
        static SIZES: Cell<Option<Sizes>> = const { Cell::new(None) };
        static ENABLED: RefCell<BTreeSet<Failpoint>> = const { RefCell::new(BTreeSet::new()) };
        static CURRENT: RefCell<Option<Freezer>> = const { RefCell::new(None) };
    }

    /// Whether a layer is switched off on this thread.
    #[must_use]
    pub fn enabled(failpoint: Failpoint) -> bool {
        ENABLED.with_borrow(|enabled| enabled.contains(&failpoint))
    }

    /// Switches layers off on this thread until dropped.
    #[must_use]
    pub fn enable(failpoints: &[Failpoint]) -> EnabledFailpoints {
        ENABLED.set(failpoints.iter().copied().collect());
        EnabledFailpoints(())
    }

    /// What counts as a large tree on this thread; `None`: what always does.
    #[must_use]
    pub fn sizes() -> Option<Sizes> {
        SIZES.get()
    }

    /// From now on this counts as a large tree on this thread: a simulated world is small.
    pub fn resize(sizes: Option<Sizes>) {
        SIZES.set(sizes);
    }

    /// See [`enable`].
    pub struct EnabledFailpoints(());

    impl Drop for EnabledFailpoints {
        fn drop(&mut self) {
            ENABLED.take();
        }
    }

    /// The task of a daemon: it belongs to the process that spawns it, and stands still when that does.
    pub fn task<F: Future>(future: F) -> FreezableTask<F> {
        FreezableTask { freezer: CURRENT.with_borrow(Clone::clone), inner: Box::pin(future) }
    }

    /// Holds all tasks of one simulated process still.
    #[derive(Clone, Default)]
    pub struct Freezer(Arc<Mutex<Frozen>>);

    #[derive(Default)]
    struct Frozen {
        frozen: bool,
        waiting: Vec<Waker>,
    }

    impl Freezer {
        /// The first task of a process; those that it spawns belong to it.
        pub fn process<F: Future>(&self, future: F) -> FreezableTask<F> {
            FreezableTask { freezer: Some(self.clone()), inner: Box::pin(future) }
        }

        /// Stops the process: no task of it runs.
        pub fn freeze(&self) {
            self.lock().frozen = true;
        }

        /// Lets it go on. Everything that happened meanwhile is found at once.
        pub fn thaw(&self) {
            let waiting = {
                let mut frozen = self.lock();
                frozen.frozen = false;
                std::mem::take(&mut frozen.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
        }

        fn lock(&self) -> MutexGuard<'_, Frozen> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn holds(&self, cx: &Context<'_>) -> bool {
            let mut frozen = self.lock();
            if frozen.frozen {
                frozen.waiting.push(cx.waker().clone());
            }
            frozen.frozen
        }
    }

    /// See [`task`].
    pub struct FreezableTask<F> {
        freezer: Option<Freezer>,
        inner: Pin<Box<F>>,
    }

    /// Puts the process before back, also when a task panics.
    struct Scope(Option<Freezer>);

    impl Drop for Scope {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }

    impl<F: Future> Future for FreezableTask<F> {
        type Output = F::Output;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            let Some(freezer) = self.freezer.clone() else { return self.inner.as_mut().poll(cx) };
            if freezer.holds(cx) {
                return Poll::Pending;
            }
            let _scope = Scope(CURRENT.replace(Some(freezer)));
            self.inner.as_mut().poll(cx)
        }
    }
}
#[cfg(feature = "failpoints")]
pub use live::{EnabledFailpoints, FreezableTask, Freezer, enable, enabled, resize, sizes, task};
