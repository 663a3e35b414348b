//! Kubeflow's `TFJob`, `PyTorchJob`, `MPIJob` and `XGBoostJob`.

use serde_json::Value;

use super::fields::{FieldIssues, FieldReader};
use super::template::template;
use super::{Defaults, base, run_policy};
use crate::job::spec::{Elastic, Framework, JobSpec, JobTask, Restart};

/// What is fixed for a framework.
struct Rules {
    framework: Framework,
    /// The field with the members.
    field: &'static str,
    /// The types of members that there are, in the order in which they are looked at.
    types: &'static [&'static str],
    /// The container that every member must have.
    container: &'static str,
    /// The restart policy unless given.
    restart: Restart,
}

const TENSORFLOW: Rules = Rules {
    framework: Framework::TensorFlow,
    field: "tfReplicaSpecs",
    types: &["Chief", "Evaluator", "Master", "PS", "Worker"],
    container: "tensorflow",
    restart: Restart::Never,
};
const PYTORCH: Rules = Rules {
    framework: Framework::PyTorch,
    field: "pytorchReplicaSpecs",
    types: &["Master", "Worker"],
    container: "pytorch",
    restart: Restart::OnFailure,
};
const MPI: Rules = Rules {
    framework: Framework::Mpi,
    field: "mpiReplicaSpecs",
    types: &["Launcher", "Worker"],
    container: "mpi",
    restart: Restart::Never,
};
const XGBOOST: Rules = Rules {
    framework: Framework::XgBoost,
    field: "xgbReplicaSpecs",
    types: &["Master", "Worker"],
    container: "xgboost",
    restart: Restart::Never,
};

/// The field with the members of a framework.
#[must_use]
pub fn field_of(framework: Framework) -> &'static str {
    match framework {
        Framework::Volcano | Framework::Pod => "tasks",
        Framework::TensorFlow => TENSORFLOW.field,
        Framework::PyTorch => PYTORCH.field,
        Framework::Mpi => MPI.field,
        Framework::XgBoost => XGBOOST.field,
    }
}

/// The container that the members of a framework run.
#[must_use]
pub fn container_of(framework: Framework) -> Option<&'static str> {
    Some(match framework {
        Framework::Volcano | Framework::Pod => return None,
        Framework::TensorFlow => TENSORFLOW.container,
        Framework::PyTorch => PYTORCH.container,
        Framework::Mpi => MPI.container,
        Framework::XgBoost => XGBOOST.container,
    })
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
    remarks: &mut FieldIssues,
) -> JobSpec {
    let rules = match framework {
        Framework::Volcano | Framework::Pod | Framework::TensorFlow => TENSORFLOW,
        Framework::PyTorch => PYTORCH,
        Framework::Mpi => MPI,
        Framework::XgBoost => XGBOOST,
    };
    let mut job = base(rules.framework, members(&rules, spec, remarks), Defaults::Kubeflow);
    job.min_available = job.replicas();
    run_policy(&mut job, spec, remarks);
    match framework {
        Framework::TensorFlow => tensorflow(&mut job, spec, remarks),
        Framework::PyTorch => pytorch(&mut job, spec, remarks),
        Framework::Mpi => mpi(&mut job, spec, remarks),
        Framework::XgBoost | Framework::Volcano | Framework::Pod => {}
    }
    job
}

/// The members in the order of the rules; a type in another case (`worker`, `WORKER`) is that type.
fn members(rules: &Rules, spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> Vec<JobTask> {
    let mut tasks: Vec<(usize, JobTask)> = Vec::new();
    let entries = spec.entries(rules.field, remarks);
    if entries.is_empty() {
        remarks.problem(spec.at(rules.field), "there are no members; write at least one type");
    }
    for (path, name, value) in entries {
        let known = rules.types.iter().position(|known| known.eq_ignore_ascii_case(name));
        match known {
            Some(at) => {
                let name = rules.types[at];
                tasks.push((at, member(rules, name, path, value, remarks)));
            }
            None => {
                let why = format!("there is no such type; there are {}", rules.types.join(", "));
                remarks.problem(path, why);
            }
        }
    }
    tasks.sort_by_key(|(at, _)| *at);
    tasks.into_iter().map(|(_, task)| task).collect()
}

fn member(
    rules: &Rules,
    name: &str,
    path: String,
    value: &Value,
    remarks: &mut FieldIssues,
) -> JobTask {
    let mut fields = FieldReader::of(path, value, remarks);
    let replicas = super::replicas(&mut fields, remarks).unwrap_or(1);
    let restart = fields.word("restartPolicy", &RESTARTS, remarks);
    let (template, in_template) = template(fields.at("template"), fields.take("template"), remarks);
    if in_template.is_some() {
        // SettedPodTemplateRestartPolicy
        let field = format!("{}.spec.restartPolicy", fields.at("template"));
        remarks.warning(field, "the restartPolicy beside the template counts");
    }
    if !template.containers.is_empty()
        && !template.containers.iter().any(|container| container.name == rules.container)
    {
        let field = format!("{}.spec.containers", fields.at("template"));
        let why = format!("there is no container named {:?}", rules.container);
        remarks.problem(field, why);
    }
    fields.finish(remarks);
    JobTask {
        name: name.to_owned(),
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

fn tensorflow(job: &mut JobSpec, spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    let policies = [("AllWorkers", true), ("", false), ("Default", false)];
    job.all_workers_must_succeed = spec.word("successPolicy", &policies, remarks).unwrap_or(false);
    job.dynamic_workers = spec.flag("enableDynamicWorker", remarks).unwrap_or(false);
}

fn pytorch(job: &mut JobSpec, spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    job.processes_per_node = match spec.take("nprocPerNode") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(_) => {
            remarks.problem(spec.at("nprocPerNode"), "write auto, cpu, gpu or a number");
            None
        }
        None => None,
    };
    let mut fields = spec.object("elasticPolicy", remarks);
    if fields.is_empty() {
        return;
    }
    let port = fields.number("rdzvPort", 1, remarks);
    let mut elastic = Elastic {
        min: fields.count("minReplicas", remarks),
        max: fields.count("maxReplicas", remarks),
        backend: fields.text("rdzvBackend", remarks).map(str::to_owned),
        host: fields.text("rdzvHost", remarks).map(str::to_owned),
        port: port.and_then(|port| u16::try_from(port).ok()),
        id: fields.text("rdzvId", remarks).map(str::to_owned),
        conf: Vec::new(),
        max_restarts: fields.count("maxRestarts", remarks),
        standalone: fields.flag("standalone", remarks).unwrap_or(false),
    };
    for (path, value) in fields.list("rdzvConf", remarks) {
        let mut pair = FieldReader::of(path, value, remarks);
        let key = pair.text("key", remarks).unwrap_or_default().to_owned();
        let value = pair.text("value", remarks).unwrap_or_default().to_owned();
        pair.finish(remarks);
        elastic.conf.push((key, value));
    }
    if let Some(n) = fields.take("nProcPerNode") {
        job.processes_per_node = Some(n.to_string().trim_matches('"').to_owned());
    }
    fields.refuse(
        &["metrics"],
        "nobody scales a job by its load; change replicas by hand",
        remarks,
    );
    if let (Some(min), Some(max)) = (elastic.min, elastic.max)
        && min > max
    {
        let why = format!("it is more than maxReplicas, {max}");
        remarks.problem(fields.at("minReplicas"), why);
    }
    fields.finish(remarks);
    job.elastic = Some(elastic);
}

fn mpi(job: &mut JobSpec, spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    job.slots_per_worker = spec.count("slotsPerWorker", remarks).unwrap_or(1);
    spec.pass_over(
        &["mainContainer", "sshAuthMountPath"],
        "the container is named mpi, and the nodes' own ssh is used; it is passed over",
        remarks,
    );
    if spec.text("mpiImplementation", remarks).is_some_and(|name| name != "OpenMPI") {
        let why = "only OpenMPI's way of finding hosts is served";
        remarks.problem(spec.at("mpiImplementation"), why);
    }
}
