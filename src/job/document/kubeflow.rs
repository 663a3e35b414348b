//! Kubeflow's `TFJob`, `PyTorchJob`, `MPIJob` and `XGBoostJob`.

use serde_json::Value;

use super::fields::{FieldIssues, FieldReader};
use super::template::template;
use super::{Defaults, base, run_policy};
use rcfarm_api::job::spec::{Elastic, Framework, JobSpec, JobTask, Restart};

/// Constants of a framework.
pub(super) struct Rules<'r> {
    /// Container that every member needs.
    pub(super) container: Option<&'r str>,
    /// Replica types, in the order of the job's tasks.
    pub(super) types: &'r [&'r str],
    /// Their default numbers of members; 1 where there is none.
    pub(super) replicas: &'r [u32],
    /// Default restart policy.
    pub(super) restart: Restart,
}

/// Field with the replica specs, types and default restart policy of a framework.
type BuiltIn = (&'static str, &'static [&'static str], Restart);

const TENSORFLOW: BuiltIn =
    ("tfReplicaSpecs", &["Chief", "Evaluator", "Master", "PS", "Worker"], Restart::Never);
const PYTORCH: BuiltIn = ("pytorchReplicaSpecs", &["Master", "Worker"], Restart::OnFailure);
const MPI: BuiltIn = ("mpiReplicaSpecs", &["Launcher", "Worker"], Restart::Never);
const XGBOOST: BuiltIn = ("xgbReplicaSpecs", &["Master", "Worker"], Restart::Never);

/// Constants of a Kubeflow framework.
fn built_in(framework: Framework) -> Option<&'static BuiltIn> {
    match framework {
        Framework::Volcano | Framework::Pod | Framework::Described => None,
        Framework::TensorFlow => Some(&TENSORFLOW),
        Framework::PyTorch => Some(&PYTORCH),
        Framework::Mpi => Some(&MPI),
        Framework::XgBoost => Some(&XGBOOST),
    }
}

/// Field with the replica specs.
pub(super) fn field_of(job: &JobSpec) -> &str {
    let described = job.job_type.as_ref().map(|job_type| job_type.spec.replica_specs.as_str());
    described.unwrap_or_else(|| built_in(job.framework).map_or("tasks", |(field, ..)| field))
}

#[must_use]
pub(super) fn task_path(job: &JobSpec, n: usize) -> String {
    let field = field_of(job);
    match job.framework {
        Framework::Volcano => format!("spec.{field}[{n}]"),
        Framework::Pod => "spec".to_owned(),
        _ => format!("spec.{field}.{}", job.tasks[n].name),
    }
}

const RESTARTS: [(&str, Restart); 4] = [
    ("Always", Restart::Always),
    ("OnFailure", Restart::OnFailure),
    ("Never", Restart::Never),
    ("ExitCode", Restart::ExitCode),
];

pub(super) fn job(
    framework: Framework,
    spec: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> JobSpec {
    let (field, types, restart) = *built_in(framework).unwrap_or(&TENSORFLOW);
    let rules = Rules { container: framework.container(), types, replicas: &[], restart };
    let mut job = base(framework, members(&rules, field, spec, issues), Defaults::Kubeflow);
    job.min_available = job.replicas();
    run_policy(&mut job, spec, issues);
    match framework {
        Framework::TensorFlow => tensorflow(&mut job, spec, issues),
        Framework::PyTorch => pytorch(&mut job, spec, issues),
        Framework::Mpi => mpi(&mut job, spec, issues),
        Framework::XgBoost | Framework::Volcano | Framework::Pod | Framework::Described => {}
    }
    job
}

/// Replica specs in the order of `types`; types are matched regardless of case.
pub(super) fn members<'v>(
    rules: &Rules<'_>,
    field: &'v str,
    spec: &mut FieldReader<'v>,
    issues: &mut FieldIssues,
) -> Vec<JobTask> {
    let mut tasks: Vec<(usize, JobTask)> = Vec::new();
    let entries = spec.entries(field, issues);
    if entries.is_empty() {
        issues.problem(spec.at(field), "there are no members; write at least one type");
    }
    for (path, name, value) in entries {
        let known = rules.types.iter().position(|known| known.eq_ignore_ascii_case(name));
        match known {
            Some(at) => {
                tasks.push((at, member(rules, at, path, value, issues)));
            }
            None => {
                let why = format!("there is no such type; there are {}", rules.types.join(", "));
                issues.problem(path, why);
            }
        }
    }
    tasks.sort_by_key(|(at, _)| *at);
    tasks.into_iter().map(|(_, task)| task).collect()
}

fn member(
    rules: &Rules<'_>,
    at: usize,
    path: String,
    value: &Value,
    issues: &mut FieldIssues,
) -> JobTask {
    let mut fields = FieldReader::of(path, value, issues);
    let replicas = super::replicas(&mut fields, issues);
    let replicas = replicas.or(rules.replicas.get(at).copied()).unwrap_or(1);
    let restart = fields.word("restartPolicy", &RESTARTS, issues);
    let (template, in_template) = template(fields.at("template"), fields.take("template"), issues);
    if in_template.is_some() {
        // Kubeflow's event SettedPodTemplateRestartPolicy.
        let field = format!("{}.spec.restartPolicy", fields.at("template"));
        issues.warning(field, "the restartPolicy beside the template counts");
    }
    if let Some(wanted) = rules.container
        && !template.containers.is_empty()
        && !template.containers.iter().any(|container| container.name == wanted)
    {
        let field = format!("{}.spec.containers", fields.at("template"));
        let why = format!("there is no container named {wanted:?}");
        issues.problem(field, why);
    }
    fields.finish(issues);
    JobTask {
        name: rules.types[at].to_owned(),
        replicas,
        min_available: None,
        restart: restart.unwrap_or(rules.restart),
        max_retry: None,
        depends_on: Vec::new(),
        any_dependency: false,
        policies: Vec::new(),
        template,
    }
}

fn tensorflow(job: &mut JobSpec, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    let policies = [("AllWorkers", true), ("", false), ("Default", false)];
    job.all_workers_must_succeed = spec.word("successPolicy", &policies, issues).unwrap_or(false);
    job.dynamic_workers = spec.flag("enableDynamicWorker", issues).unwrap_or(false);
}

fn pytorch(job: &mut JobSpec, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    job.processes_per_node = match spec.take("nprocPerNode") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(_) => {
            issues.problem(spec.at("nprocPerNode"), "write auto, cpu, gpu or a number");
            None
        }
        None => None,
    };
    let mut fields = spec.object("elasticPolicy", issues);
    if fields.is_empty() {
        return;
    }
    let port = fields.number("rdzvPort", 1, issues);
    let mut elastic = Elastic {
        min: fields.count("minReplicas", issues),
        max: fields.count("maxReplicas", issues),
        backend: fields.text("rdzvBackend", issues).map(str::to_owned),
        host: fields.text("rdzvHost", issues).map(str::to_owned),
        port: port.and_then(|port| u16::try_from(port).ok()),
        id: fields.text("rdzvId", issues).map(str::to_owned),
        conf: Vec::new(),
        max_restarts: fields.count("maxRestarts", issues),
        standalone: fields.flag("standalone", issues).unwrap_or(false),
    };
    for (path, value) in fields.list("rdzvConf", issues) {
        let mut pair = FieldReader::of(path, value, issues);
        let key = pair.text("key", issues).unwrap_or_default().to_owned();
        let value = pair.text("value", issues).unwrap_or_default().to_owned();
        pair.finish(issues);
        elastic.conf.push((key, value));
    }
    if let Some(n) = fields.take("nProcPerNode") {
        job.processes_per_node = Some(n.to_string().trim_matches('"').to_owned());
    }
    let by_hand = "nobody scales a job by its load; change replicas by hand";
    fields.pass_over(&["metrics"], by_hand, issues);
    if let (Some(min), Some(max)) = (elastic.min, elastic.max)
        && min > max
    {
        let why = format!("it is more than maxReplicas, {max}");
        issues.problem(fields.at("minReplicas"), why);
    }
    fields.finish(issues);
    job.elastic = Some(elastic);
}

fn mpi(job: &mut JobSpec, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    job.slots_per_worker = spec.count("slotsPerWorker", issues).unwrap_or(1);
    spec.pass_over(
        &["mainContainer", "sshAuthMountPath"],
        "the container is named mpi, and the nodes' own ssh is used; it is passed over",
        issues,
    );
    if spec.text("mpiImplementation", issues).is_some_and(|name| name != "OpenMPI") {
        let why = "only OpenMPI's way of finding hosts is served";
        issues.problem(spec.at("mpiImplementation"), why);
    }
}
