//! `/metrics` and `/readyz` of a node agent, beside the `/healthz` and the logs that it serves on `--http`. They show
//! nothing secret.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{OPENMETRICS, RequestCounts, register_build, register_requests};
use rcfarm_node::agent::metrics::{AgentCounts, AgentGauges, AgentMetrics};

/// Data of the endpoint.
#[derive(Clone)]
pub struct NodeShown {
    /// What the agent counts.
    pub metrics: Arc<AgentMetrics>,
    /// Requests to Consul.
    pub requests: RequestCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    outcome: &'static str,
}

/// The route, to be served with the others of the agent.
pub fn routes(shown: NodeShown) -> Router {
    Router::new().route("/metrics", get(metrics)).route("/readyz", get(ready)).with_state(shown)
}

/// Ready means that the agent is registered, so it starts and stops pods.
async fn ready(State(shown): State<NodeShown>) -> impl IntoResponse {
    readiness(shown.metrics.gauges().await.as_ref())
}

fn readiness(gauges: Option<&AgentGauges>) -> (StatusCode, &'static str) {
    match gauges {
        None => (StatusCode::SERVICE_UNAVAILABLE, "the agent's loop does not answer\n"),
        Some(AgentGauges { has_session: false, .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "no session\n")
        }
        Some(_) => (StatusCode::OK, "ok\n"),
    }
}

async fn metrics(State(shown): State<NodeShown>) -> impl IntoResponse {
    let gauges = shown.metrics.gauges().await;
    let text = exposition(&shown.metrics.counts(), gauges.as_ref(), &shown.requests);
    ([(header::CONTENT_TYPE, OPENMETRICS)], text)
}

/// The metrics of one scrape. Without `gauges`, because the agent's loop hangs, they are left out.
fn exposition(
    counts: &AgentCounts,
    gauges: Option<&AgentGauges>,
    requests: &RequestCounts,
) -> String {
    let mut registry = Registry::with_prefix("rcfarm");
    if let Some(AgentGauges { has_session, pods, critical }) = gauges {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let session = Gauge::<i64>::default();
        session.set(i64::from(*has_session));
        let help = "1 while the agent is registered; without a session it starts and stops nothing";
        registry.register("node_session_open", help, session);
        let by_phase = Family::<OfPhase, Gauge>::default();
        for (phase, count) in pods {
            by_phase.get_or_create(&OfPhase { phase: phase.clone() }).set(signed(*count));
        }
        registry.register("node_pods", "Pods of this node by phase", by_phase);
        let unhealthy = Gauge::<i64>::default();
        unhealthy.set(signed(*critical));
        let help = "Pods of this node whose health is critical and that have not ended";
        registry.register("node_pods_critical", help, unhealthy);
    }
    let AgentCounts { started, not_started, succeeded, failed, reports } = counts;
    let starts = outcomes([("started", *started), ("failed", *not_started)]);
    registry.register("node_starts", "Starts of processes", starts);
    let exits = outcomes([("succeeded", *succeeded), ("failed", *failed)]);
    let help = "Ends of processes; failed: not with code 0, those that the agent stopped included";
    registry.register("node_exits", help, exits);
    let reports = outcomes(reports.iter().map(|(outcome, count)| (*outcome, *count)));
    registry.register("node_reports", "Transactions with the agent's reports", reports);
    register_requests(&mut registry, requests());
    register_build(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string");
    text
}

fn outcomes(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Family<OfResult, Counter> {
    let family = Family::<OfResult, Counter>::default();
    for (outcome, count) in counts {
        family.get_or_create(&OfResult { outcome }).inc_by(count);
    }
    family
}

/// An exposition with everything that an agent counts.
#[cfg(test)]
pub(super) fn full_exposition(requests: &RequestCounts) -> String {
    let gauges =
        AgentGauges { has_session: true, pods: [("Running".to_owned(), 1)].into(), critical: 0 };
    let reports = ["applied", "conflict", "claim_lost", "failed"].map(|outcome| (outcome, 1));
    let counts = AgentCounts { reports: reports.into(), ..AgentCounts::default() };
    exposition(&counts, Some(&gauges), requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_ready_while_it_holds_a_session() {
        let gauges = |has_session| AgentGauges { has_session, pods: [].into(), critical: 0 };
        assert_eq!(readiness(Some(&gauges(true))), (StatusCode::OK, "ok\n"));
        let no_session = (StatusCode::SERVICE_UNAVAILABLE, "no session\n");
        assert_eq!(readiness(Some(&gauges(false))), no_session);
        assert_eq!(readiness(None).0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn the_exposition_names_what_the_agent_counts() {
        let gauges = AgentGauges {
            has_session: true,
            pods: [("Running".to_owned(), 3), ("Backoff".to_owned(), 1)].into(),
            critical: 1,
        };
        let counts = AgentCounts {
            started: 5,
            not_started: 2,
            succeeded: 1,
            failed: 4,
            reports: [("applied", 9)].into(),
        };
        let requests: RequestCounts = Arc::new(|| [("transaction", 41)].into());
        let text = exposition(&counts, Some(&gauges), &requests);
        for line in [
            "rcfarm_node_session_open 1",
            "rcfarm_node_pods{phase=\"Running\"} 3",
            "rcfarm_node_pods_critical 1",
            "rcfarm_node_starts_total{outcome=\"failed\"} 2",
            "rcfarm_node_exits_total{outcome=\"succeeded\"} 1",
            "rcfarm_node_reports_total{outcome=\"applied\"} 9",
            "rcfarm_consul_requests_total{kind=\"transaction\"} 41",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        let hangs = exposition(&counts, None, &requests);
        assert!(!hangs.contains("node_session_open") && hangs.contains("node_starts_total"));
    }
}
