//! What can go wrong between a client and Consul, decided by a test or a simulator request by request.

use std::time::Duration;

use super::catalog::ServiceRequest;
use super::session::SessionRequest;
use super::txn::KvOp;
use rcfarm_store::StoreError;

/// A request, as the hook sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Get(&'a str),
    List(&'a str),
    Keys(&'a str),
    /// One operation on a key, a write.
    Kv(&'a KvOp),
    Txn(&'a [KvOp]),
    Session(&'a str),
    Sessions,
    CreateSession(&'a SessionRequest),
    RenewSession(&'a str),
    DestroySession(&'a str),
    /// Reads of nodes, services and checks.
    Catalog,
    RegisterService(&'a ServiceRequest),
    DeregisterService(&'a str),
    BeatCheck(&'a str),
    Leader,
}

impl Request<'_> {
    /// Whether it can change anything, so that losing its reply leaves the client in doubt.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Request::Txn(ops) => ops.iter().any(|op| op.verb.writes()),
            Request::Kv(_)
            | Request::CreateSession(_)
            | Request::RenewSession(_)
            | Request::DestroySession(_)
            | Request::RegisterService(_)
            | Request::DeregisterService(_)
            | Request::BeatCheck(_) => true,
            _ => false,
        }
    }
}

/// What becomes of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// How long the request travels.
    pub before: Duration,
    /// What happens when it arrives.
    pub outcome: FaultOutcome,
    /// How long the answer travels (the error, where the outcome is one).
    pub after: Duration,
}

/// What happens to a request at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultOutcome {
    /// It is carried out and answered.
    Deliver,
    /// It never arrives; the client sees [`StoreError::Interrupted`].
    Lose,
    /// It is carried out, but the answer never arrives; the client sees [`StoreError::Interrupted`].
    LoseReply,
    /// The client sees [`StoreError::Interrupted`]; the request is carried out this much later.
    Late(Duration),
    /// It is not carried out, and the client sees this error. To be honest, the error's verdict is
    /// [`rcfarm_store::RetryVerdict::NotApplied`].
    Fail(StoreError),
    /// A deposed leader answers. A read of keys or sessions sees the state of this many writes ago (as far as
    /// they are remembered: 1,000), and a renewal finds the session as it was then and prolongs nothing. A
    /// consistent read finds it out: [`StoreError::NoLeader`]. Everything else is delivered.
    Stale(usize),
    /// A list or a list of keys is cut to this many, with the index of the whole: what lost rights look like.
    /// Everything else is delivered.
    Short(usize),
}

impl Fate {
    /// At once and without fault.
    pub const DELIVER: Fate =
        Fate { before: Duration::ZERO, outcome: FaultOutcome::Deliver, after: Duration::ZERO };

    /// This outcome, at once.
    #[must_use]
    pub fn of(outcome: FaultOutcome) -> Fate {
        Fate { outcome, ..Fate::DELIVER }
    }
}

/// Decides the fate of each request of one client. Must itself be deterministic where the test is to be.
pub trait Faults: Send + Sync + 'static {
    /// What becomes of this request; asked once, when it is made.
    fn fate(&self, request: &Request<'_>) -> Fate;

    /// Whether the client can still be reached: asked when a read that blocked is about to answer. `false`: the
    /// client sees [`StoreError::Interrupted`].
    fn reaches_client(&self, _request: &Request<'_>) -> bool {
        true
    }
}

impl<F: Fn(&Request<'_>) -> Fate + Send + Sync + 'static> Faults for F {
    fn fate(&self, request: &Request<'_>) -> Fate {
        self(request)
    }
}
