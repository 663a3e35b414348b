//! Failpoints for the simulation. Without the feature `failpoints` every function here does nothing.
//!
//! - [`enabled`]: safety layers that the simulation switches off, to prove that its checks notice their absence.
//! - [`task`]: tasks that the simulation can freeze, as SIGSTOP does.
//! - [`sizes`]: thresholds of incremental reads, so that small trees are read as large ones are.

use crate::Op;
use rcfarm_api::key::{self, LabelKind};

/// A safety layer that can be switched off. Each variant says what then happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failpoint {
    /// Transactions carry no fence.
    NoFence,
    /// The local deadline never passes.
    NoDeadline,
    /// An epoch outlives its session.
    DeadSessionKept,
    /// Locks outlive their session.
    LockOutlivesSession,
    /// A farm keeps a record whose labels no longer match its selector.
    ClaimKept,
    /// Transactions do not check that the record is unchanged since the plan.
    NoRecordGuard,
    /// The status is written without CAS.
    NoChain,
    /// A write whose answer was lost counts as not applied and is repeated.
    RepeatUnknown,
    /// Pods' labels are written without CAS.
    NoLabelGuard,
    /// Intents are written without CAS.
    NoIntentGuard,
    /// A pod is removed without a check that it still belongs to the record.
    NoOwnIdCheck,
    /// An owner ignores its own transactions that its caches do not show yet.
    OwnWritesForgotten,
    /// A new owner uses caches that were read before it claimed the record.
    StaleTakeOver,
    /// The mass-deletion guard trusts every tree.
    NoEmptinessGuard,
    /// Disabled records are reconciled.
    DisabledIgnored,
    /// A healthy pod is moved although others are unhealthy.
    TransferBlind,
    /// The declared minimum of healthy pods is ignored.
    NoMinimumHealth,
    /// A changed manifest is written to all pods at once, whatever order was asked for.
    UpdateUnordered,
    /// Pods that are being restarted count as healthy.
    RestartsUncounted,
    /// Pods are removed in the order of their nodes' names.
    RemovalUnordered,
    /// Pods are added on nodes that are down or drained.
    UnfitTaken,
    /// Allocations are written without CAS.
    PromiseUnguarded,
    /// Changes of pods leave no audit record.
    NoAudit,
    /// The audit record is written after the transaction, not in it.
    AuditApart,
    /// A record that keeps failing is retried at once, without limit.
    NoQuarantine,
    /// A panic of one controller ends the farm.
    PanicEscapes,
    /// A transaction deletes a command without a check that it exists.
    CommandRepeated,
    /// Members start without a check that their gang has a placement.
    PlaceUnchecked,
    /// A gang's placement is deleted although it has pods, and without CAS.
    PlacePulled,
    /// A placement that was written ahead counts before its allocations exist.
    PromiseSkipped,
    /// One restart counts as two.
    CountedTwice,
    /// Members do not wait for the tasks that they depend on.
    DependenciesIgnored,
    /// Members restart without a pause.
    PausesIgnored,
    /// Limits of queues are ignored.
    LimitsIgnored,
    /// In a strict queue, a group that fits overtakes one that does not.
    OrderIgnored,
    /// A group with an invalid record fails every pass of its scheduler.
    InvalidGroupFailsPass,
    /// A CronJob forgets which scheduled times are done with.
    RunsForgotten,
    /// Every CronJob's `concurrencyPolicy` is `Allow`.
    PolicyIgnored,
    /// Schedules are read in UTC, whatever their time zone.
    ZoneIgnored,
    /// A CronJob's clock is ahead.
    RunsEarly,
    /// Steps of flows do not wait for those that they depend on.
    StepsUnordered,
    /// A flow forgets steps whose job has ended.
    StepsForgotten,
    /// A flow takes failed jobs for completed ones.
    FailureIgnored,
    /// Jobs do not wait for those that they depend on.
    JobsUnordered,
    /// A task of an array counts as completed when it starts.
    TaskEndsAssumed,
    /// An array forgets which tasks have completed.
    TaskEndsForgotten,
    /// Groups that have to make room are not told.
    VictimsUntold,
    /// Reservations of cells are not written.
    ReservationUnwritten,
    /// A pass does not see reservations of cells.
    ReservationHidden,
    /// A pass does not see which cells groups hold.
    HoldersHidden,
    /// One virtual cluster has all cells.
    QuotaIgnored,
    /// Every group that holds cells counts as opportunistic.
    RanksIgnored,
    /// The devices of a bound group change.
    PlaceMoved,
    /// Virtual cells are given from the first leaf on, whoever has it.
    VirtualsRepeated,
    /// Jobs do not stop when their group is evicted.
    EvictionIgnored,
    /// A group that has to leave a node loses its cells before its members have stopped.
    DrainedPulled,
    /// A node agent takes intents that it has not read yet for none.
    UnreadIsEmpty,
    /// A node agent takes a list that lacks an intent for proof that it is gone.
    ListIsProof,
    /// A node agent does not adopt the processes of the agent before it.
    NothingAdopted,
    /// A node agent keeps pods whose intent is gone.
    UnintendedKept,
    /// A node agent reports the processes of a pod once, and no change of them.
    ReportedOnce,
}

/// Replaces the guards that are switched off. Positions stay, because refusals name them.
pub fn drop_guards(ops: &mut [Op]) {
    let (pods, intents) = (key::labels(LabelKind::Pod), key::intents());
    let unguarded = [
        (Failpoint::NoLabelGuard, pods.clone()),
        (Failpoint::NoIntentGuard, intents),
        (Failpoint::PromiseUnguarded, key::allocations()),
    ];
    for (_, prefix) in unguarded.iter().filter(|(failpoint, _)| enabled(*failpoint)) {
        for op in ops.iter_mut().filter(|op| prefix.tail(op.subject()).is_some()) {
            if let Op::Cas { key, value, flags, .. } = op {
                *op = Op::Set { key: key.clone(), value: value.clone(), flags: *flags };
            }
        }
    }
    if enabled(Failpoint::NoOwnIdCheck) {
        for n in 1..ops.len() {
            let (Op::CheckIndex { key, .. }, Op::Delete { key: deleted }) = (&ops[n - 1], &ops[n])
            else {
                continue;
            };
            if key == deleted && pods.tail(key.as_str()).is_some() {
                ops[n - 1] = Op::GetTree { prefix: key::rc_locks() };
            }
        }
    }
}

#[cfg(not(feature = "failpoints"))]
mod inert {
    /// Whether a layer is switched off.
    pub const fn enabled(_: super::Failpoint) -> bool {
        false
    }

    /// The future itself.
    pub fn task<F: Future>(future: F) -> F {
        future
    }

    /// `None`: the default thresholds.
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
    pub fn enabled(failpoint: Failpoint) -> bool {
        ENABLED.with_borrow(|enabled| enabled.contains(&failpoint))
    }

    /// Switches layers off on this thread until dropped.
    pub fn enable(failpoints: &[Failpoint]) -> EnabledFailpoints {
        ENABLED.set(failpoints.iter().copied().collect());
        EnabledFailpoints(())
    }

    /// Thresholds of incremental reads on this thread; `None`: the default.
    pub fn sizes() -> Option<Sizes> {
        SIZES.get()
    }

    /// Sets the thresholds of incremental reads on this thread.
    pub fn resize(sizes: Option<Sizes>) {
        SIZES.set(sizes);
    }

    /// Failpoints of this thread; dropping it switches all layers on again.
    pub struct EnabledFailpoints(());

    impl Drop for EnabledFailpoints {
        fn drop(&mut self) {
            ENABLED.take();
        }
    }

    /// A task of a daemon. It belongs to the simulated process that spawns it and freezes with it.
    pub fn task<F: Future>(future: F) -> FreezableTask<F> {
        FreezableTask { freezer: CURRENT.with_borrow(Clone::clone), inner: Box::pin(future) }
    }

    /// Freezes all tasks of one simulated process.
    #[derive(Clone, Default)]
    pub struct Freezer(Arc<Mutex<Frozen>>);

    #[derive(Default)]
    struct Frozen {
        frozen: bool,
        waiting: Vec<Waker>,
    }

    impl Freezer {
        /// The first task of a process. Tasks that it spawns by [`task`] belong to the process.
        pub fn process<F: Future>(&self, future: F) -> FreezableTask<F> {
            FreezableTask { freezer: Some(self.clone()), inner: Box::pin(future) }
        }

        /// Freezes the process: none of its tasks is polled.
        pub fn freeze(&self) {
            self.lock().frozen = true;
        }

        /// Thaws the process and wakes its tasks.
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

    /// A future that is not polled while its process is frozen.
    pub struct FreezableTask<F> {
        freezer: Option<Freezer>,
        inner: Pin<Box<F>>,
    }

    /// Restores the previous process when dropped, even if the task panics.
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
