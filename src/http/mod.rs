//! The HTTP endpoint of a daemon: `/healthz`, `/readyz`, `/metrics`, `/status`, and HiveD's `/v1/inspect/`
//! ([`inspect`]) and `/v1/extender/` ([`extender`]).
//!
//! It is read-only and returns no secrets. There is no authentication: bind it to loopback, or to the network of the
//! monitoring. Only HiveD's routes read keys.

pub mod extender;
pub mod inspect;
pub mod node;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::farm::FarmReport;
use crate::farm::metrics::{FarmMetrics, OfKind};
use rcfarm_node::http::{HttpLimits, HttpListener};
use rcfarm_store::session::Heartbeats;

/// Returns the number of requests to Consul since the start, by kind.
pub type RequestCounts = Arc<dyn Fn() -> BTreeMap<&'static str, u64> + Send + Sync>;

/// Data of the endpoint.
#[derive(Clone)]
pub struct Shown {
    /// State of the farm, updated by the farm.
    pub report: Arc<Mutex<FarmReport>>,
    /// What the farm measures.
    pub metrics: Arc<FarmMetrics>,
    /// Requests to Consul.
    pub requests: RequestCounts,
    /// How late heartbeats were answered.
    pub heartbeats: Arc<Heartbeats>,
}

impl Shown {
    fn report(&self) -> FarmReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    shown: Shown,
    hived: Router,
    shutdown: CancellationToken,
) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(|State(shown): State<Shown>| async move { Json(shown.report()) }))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "try /healthz, /readyz, /metrics, /status, /v1/inspect/ or /v1/extender/\n",
            )
        })
        .with_state(shown)
        .merge(hived);
    let limits = HttpLimits::default();
    rcfarm_node::http::serve(HttpListener::Tcp(listener), app, limits, shutdown).await;
}

/// Ready means that the farm holds a session, so it can claim records and write.
async fn ready(State(shown): State<Shown>) -> impl IntoResponse {
    let report = shown.report();
    let Some(session) = report.session else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no session\n".to_owned());
    };
    let mut text = match report.suspicions.is_empty() {
        true => format!("ok, session {session}\n"),
        false => format!("ok, but removals are paused: {}\n", report.suspicions.join("; ")),
    };
    if let Some(why) = report.check_problem {
        text.push_str(&format!("a crash will be noticed late, the session has no check: {why}\n"));
    }
    (StatusCode::OK, text)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBuild {
    version: &'static str,
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPENMETRICS)], exposition(&shown))
}

/// Content type of metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn register_requests(registry: &mut Registry, requests: BTreeMap<&'static str, u64>) {
    let sent = Family::<OfKind, Counter>::default();
    for (kind, count) in requests {
        sent.get_or_create(&OfKind { kind: kind.to_owned() }).inc_by(count);
    }
    registry.register("consul_requests", "Requests sent to Consul", sent);
}

fn register_build(registry: &mut Registry) {
    let build = Family::<OfBuild, Gauge>::default();
    build.get_or_create(&OfBuild { version: rcfarm_api::VERSION }).set(1);
    registry.register("build_info", "1, with the version of the program", build);
}

/// The metrics of one scrape. Values of the farm's report are counted there alone.
fn exposition(shown: &Shown) -> String {
    let (report, requests) = (shown.report(), (shown.requests)());
    let mut registry = Registry::with_prefix("rcfarm");
    let claims = Family::<OfKind, Gauge>::default();
    for (kind, count) in &report.claims {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        claims.get_or_create(&OfKind { kind: kind.clone() }).set(count);
    }
    registry.register("claims", "Records owned by this farm", claims);
    let session = Gauge::<i64>::default();
    session.set(i64::from(report.session.is_some()));
    registry.register("session_open", "1 while the farm holds a session", session);
    let without_check = Gauge::<i64>::default();
    without_check.set(i64::from(report.check_problem.is_some()));
    let help = "1 while the session has no check because the Consul agent refuses it";
    registry.register("session_without_check", help, without_check);
    let help = "Time from when a heartbeat of the session was due to its answer";
    let delays = HeartbeatDelays(shown.heartbeats.clone());
    registry.register_with_unit("heartbeat_delay", help, Unit::Seconds, delays);
    let suspicious = Gauge::<i64>::default();
    suspicious.set(i64::try_from(report.suspicions.len()).unwrap_or(i64::MAX));
    let help =
        "Caches held back by the mass deletion guard; removals are paused while this is not 0";
    registry.register("suspicious_trees", help, suspicious);
    counter(&mut registry, "session_lost", "Consul sessions lost", report.epochs_lost);
    let help = "Claims lost for another reason than a lost session";
    counter(&mut registry, "claims_lost", help, report.claims_lost);
    register_requests(&mut registry, requests);
    register_build(&mut registry);
    shown.metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string");
    text
}

/// Writes [`Heartbeats`] as a histogram.
#[derive(Debug)]
struct HeartbeatDelays(Arc<Heartbeats>);

impl EncodeMetric for HeartbeatDelays {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let buckets = self.0.buckets();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.0.sum().as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::farm::metrics::{CommitOutcome, ReconcileOutcome, RecordMetrics};
    use crate::farm::status_chain::ChainedStatus;
    use rcfarm_api::job::status::JobStatus;
    use rcfarm_api::rc::status::RcStatus;

    #[test]
    fn the_exposition_names_what_the_farm_reports() {
        let report = FarmReport {
            session: Some("s".to_owned()),
            claims: [("rc".to_owned(), 7)].into(),
            epochs_lost: 2,
            check_problem: Some("no rights".to_owned()),
            ..FarmReport::default()
        };
        let heartbeats = Arc::new(Heartbeats::default());
        heartbeats.answered(Duration::from_millis(3));
        heartbeats.answered(Duration::from_secs(7));
        let text = exposition(&Shown {
            report: Arc::new(Mutex::new(report)),
            metrics: Arc::default(),
            requests: Arc::new(|| [("transaction", 41)].into()),
            heartbeats,
        });
        for line in [
            "rcfarm_claims{kind=\"rc\"} 7",
            &format!("rcfarm_build_info{{version=\"{}\"}} 1", rcfarm_api::VERSION),
            "rcfarm_session_open 1",
            "rcfarm_suspicious_trees 0",
            "rcfarm_session_lost_total 2",
            "rcfarm_session_without_check 1",
            "rcfarm_heartbeat_delay_seconds_bucket{le=\"0.001\"} 0",
            "rcfarm_heartbeat_delay_seconds_bucket{le=\"0.005\"} 1",
            "rcfarm_heartbeat_delay_seconds_bucket{le=\"+Inf\"} 2",
            "rcfarm_consul_requests_total{kind=\"transaction\"} 41",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    /// Every label with its values, by metric, of a farm and an agent that have seen everything that they count.
    fn exported() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let metrics = Arc::new(FarmMetrics::default());
        let gauges = [
            ("rc", RcStatus::default().gauges()),
            ("job", JobStatus::default().gauges()),
            ("scheduler", None),
        ];
        for (kind, gauges) in gauges {
            let record = RecordMetrics::new(metrics.clone(), kind, kind.into());
            record.shows(gauges.unwrap_or_default());
            for outcome in ReconcileOutcome::ALL {
                record.reconciled(outcome, Duration::ZERO);
            }
            for outcome in CommitOutcome::ALL {
                record.committed(outcome, Duration::ZERO);
            }
            record.placed(kind, Duration::ZERO);
            record.admitted("default", Duration::ZERO);
            record.shows_queues([("default".to_owned(), vec![("Pending", 1)])].into(), [].into());
            metrics.caught_up("intent", Duration::ZERO);
            // Its end takes the record out of the gauges.
            std::mem::forget(record);
        }
        let report = FarmReport { claims: [("rc".to_owned(), 1)].into(), ..FarmReport::default() };
        let requests: RequestCounts = Arc::new(|| [("transaction", 1)].into());
        let farm = exposition(&Shown {
            report: Arc::new(Mutex::new(report)),
            metrics,
            requests: requests.clone(),
            heartbeats: Arc::default(),
        });
        let mut exported: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for line in (farm + &node::full_exposition(&requests)).lines() {
            let Some((name, rest)) = line.split_once(['{', ' ']) else { continue };
            let labels = exported.entry(name.to_owned()).or_default();
            let Some((matchers, _)) = rest.split_once('}') else { continue };
            for (label, _, value) in parsed(matchers) {
                labels.entry(label).or_default().insert(value);
            }
        }
        exported
    }

    /// Labels, operators and values of `a="b",c=~"d"`.
    fn parsed(matchers: &str) -> Vec<(String, String, String)> {
        let one = |text: &str| {
            let (left, value) = text.split_once('"')?;
            let label = left.trim_end_matches(['=', '~', '!']);
            let operator = left[label.len()..].to_owned();
            Some((label.trim().to_owned(), operator, value.trim_end_matches('"').to_owned()))
        };
        matchers.split(',').filter_map(one).collect()
    }

    /// What is wrong with an expression: a metric or a label that is not exported, a value that none has.
    fn wrong_in(
        expression: &str,
        exported: &BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    ) -> Vec<String> {
        let (mut wrong, mut labels) = (Vec::new(), BTreeSet::from(["instance"]));
        for (at, _) in expression.match_indices("rcfarm_") {
            let rest = &expression[at..];
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
            let Some(exported) = exported.get(name) else {
                wrong.push(name.to_owned());
                continue;
            };
            labels.extend(exported.keys().map(String::as_str));
            let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            for (label, operator, value) in matchers.map_or_else(Vec::new, |(all, _)| parsed(all)) {
                let known = exported.get(&label);
                let values = value.split(if operator.ends_with('~') { '|' } else { '\0' });
                let unknown = values.filter(|v| !known.is_some_and(|known| known.contains(*v)));
                wrong.extend(unknown.map(|value| format!("{name}{{{label}={value}}}")));
            }
        }
        for grouped in expression.split(" by (").skip(1) {
            let of = grouped.split(')').next().unwrap_or_default();
            let unknown = of.split(',').map(str::trim).filter(|label| !labels.contains(label));
            wrong.extend(unknown.map(|label| format!("by ({label})")));
        }
        wrong
    }

    #[test]
    fn alert_rules_and_dashboard_name_labels_that_are_exported() {
        let exported = exported();
        let rules = include_str!("../../docs/operate/monitoring/rules.yaml").to_owned();
        let rules = rules.lines().filter_map(|line| line.trim_start().strip_prefix("expr: "));
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../docs/operate/monitoring/dashboard.json"))
                .unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let all: Vec<String> = rules
            .map(str::to_owned)
            .chain(targets.map(|target| target["expr"].as_str().unwrap().to_owned()))
            .collect();
        assert!(all.len() > 35, "expressions are no longer found: {all:?}");
        assert!(all.iter().filter(|expression| expression.contains("=\"")).count() > 3);
        for expression in &all {
            assert_eq!(wrong_in(expression, &exported), [""; 0], "{expression}");
        }
        // It finds what is wrong.
        for (expression, wrong) in [
            ("rcfarm_podz > 0", "rcfarm_podz"),
            ("sum(rcfarm_pods{kind=\"rc\",count=\"mising\"})", "rcfarm_pods{count=mising}"),
            (
                "rcfarm_commits_total{outcome=~\"failed|losst\"}",
                "rcfarm_commits_total{outcome=losst}",
            ),
            ("sum by (kind, fase) (rcfarm_records)", "by (fase)"),
        ] {
            assert_eq!(wrong_in(expression, &exported), [wrong]);
        }
    }
}
