//! Faults between a client and Consul. A test or the simulator decides them for each request.

use std::time::Duration;

use super::catalog::ServiceRequest;
use super::session::SessionRequest;
use super::txn::KvOp;
use rcfarm_store::StoreError;

/// A request as [`Faults`] sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Writes of the catalog's own endpoints.
    ChangeCatalog,
    Leader,
}

impl Request<'_> {
    /// Whether the request can change the state. If its reply is lost, the client does not know the outcome.
    pub fn writes(&self) -> bool {
        match self {
            Request::Txn(ops) => ops.iter().any(|op| op.verb.writes()),
            Request::Kv(_)
            | Request::CreateSession(_)
            | Request::RenewSession(_)
            | Request::DestroySession(_)
            | Request::RegisterService(_)
            | Request::DeregisterService(_)
            | Request::BeatCheck(_)
            | Request::ChangeCatalog => true,
            _ => false,
        }
    }
}

/// The fate of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// Delay of the request.
    pub before: Duration,
    /// What happens at the server.
    pub outcome: FaultOutcome,
    /// Delay of the answer or error.
    pub after: Duration,
}

/// What happens to a request at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultOutcome {
    /// It is executed and answered.
    Deliver,
    /// It is lost; the client gets [`StoreError::Interrupted`].
    Lose,
    /// It is executed, but the answer is lost; the client gets [`StoreError::Interrupted`].
    LoseReply,
    /// The client gets [`StoreError::Interrupted`]; the request is executed this much later.
    Late(Duration),
    /// It is not executed, and the client gets this error. Its verdict should be
    /// [`rcfarm_store::RetryVerdict::NotApplied`].
    Fail(StoreError),
    /// A deposed leader answers. A read of keys or sessions returns the state of this many writes ago, at most 1,000. A
    /// renewal finds the session as it was then and extends nothing. A consistent read fails with
    /// [`StoreError::NoLeader`]. Everything else is delivered.
    Stale(usize),
    /// A list of entries or keys is cut to this many, with the index of the whole list, as with lost rights. Everything
    /// else is delivered.
    Short(usize),
}

impl Fate {
    /// Delivered without delay.
    pub const DELIVER: Fate =
        Fate { before: Duration::ZERO, outcome: FaultOutcome::Deliver, after: Duration::ZERO };

    /// This outcome without delay.
    pub fn of(outcome: FaultOutcome) -> Fate {
        Fate { outcome, ..Fate::DELIVER }
    }
}

/// Decides the fate of each request of one client. For a deterministic test it must be deterministic.
pub trait Faults: Send + Sync + 'static {
    /// The fate of a request. Called once, when the request is sent.
    fn fate(&self, request: &Request<'_>) -> Fate;

    /// Whether a blocked read that is about to answer reaches its client. `false`: the client gets
    /// [`StoreError::Interrupted`].
    fn reaches_client(&self, _request: &Request<'_>) -> bool {
        true
    }
}

impl<F: Fn(&Request<'_>) -> Fate + Send + Sync + 'static> Faults for F {
    fn fate(&self, request: &Request<'_>) -> Fate {
        self(request)
    }
}
