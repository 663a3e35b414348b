//! Decodes a Kubernetes pod template. Fields that do not apply to processes are reported.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{FieldIssues, FieldReader};
use rcfarm_api::ids::check_segment;
use rcfarm_api::job::spec::{CellAnnotation, Container, Restart, Template};
use rcfarm_api::labels::Selector;
use rcfarm_api::manifest::command_line::{Expanded, Expansion, Variables};
use rcfarm_api::manifest::{CommandStanza, HealthStanza, LONGEST_POD, check_size, plain};
use rcfarm_api::{FieldError, ResourceList};

/// Values of `restartPolicy`.
pub const RESTARTS: [(&str, Restart); 3] =
    [("Always", Restart::Always), ("OnFailure", Restart::OnFailure), ("Never", Restart::Never)];

/// Stands for the job's namespace until its name is known.
pub(super) const NAMESPACE: &str = "$(RCFARM_JOB_NAMESPACE)";

/// Directory of the files that Volcano's svc plugin writes.
const HOST_FILES: &str = "/etc/volcano/";

const NOT_HERE: &str = "it means nothing to processes on a node; it is passed over";

/// Template and its restart policy.
pub fn template(
    path: String,
    value: Option<&Value>,
    issues: &mut FieldIssues,
) -> (Template, Option<Restart>) {
    let nothing = Value::Null;
    if value.is_none() {
        issues.problem(path.clone(), "there is no pod template; write what shall run");
    }
    let mut fields = FieldReader::of(path, value.unwrap_or(&nothing), issues);
    let mut metadata = fields.object("metadata", issues);
    let labels = super::labels(&mut metadata, &[], issues);
    let (mut cells, mut budget) = (None, None);
    for (path, name, value) in metadata.entries("annotations", issues) {
        if name == super::cells::ANNOTATION {
            cells = cell_annotation(path, value, issues);
            continue;
        }
        if super::budget::note(&mut budget, (&path, name, value), issues) {
            continue;
        }
        issues.warning(path, "pods have no annotations here; labels reach them");
    }
    metadata.take("creationTimestamp");
    metadata.pass_over(&["name", "namespace"], "pods are named after their job", issues);
    metadata.finish(issues);
    let mut spec = fields.object("spec", issues);
    fields.finish(issues);
    let field = cell_field(&mut spec, issues);
    let cells = one_request(cells, field, issues);

    let containers = spec.list("containers", issues);
    if containers.is_empty() && value.is_some() {
        issues.problem(spec.at("containers"), "a pod needs at least one container");
    }
    let containers: Vec<Container> =
        containers.into_iter().map(|(path, value)| container(path, value, issues)).collect();
    for (n, one) in containers.iter().enumerate() {
        if containers[..n].iter().any(|other| other.name == one.name) {
            let field = format!("{}[{n}].name", spec.at("containers"));
            issues.problem(field, format!("there is another container {:?}", one.name));
        }
    }
    check_sizes(&spec.at("containers"), &containers, issues);
    let restart = spec.word("restartPolicy", &RESTARTS, issues);
    let template = Template {
        containers,
        node_selector: node_selector(&mut spec, issues),
        run_as: run_as(&mut spec, issues),
        grace: spec.seconds("terminationGracePeriodSeconds", 0, issues),
        labels,
        cells,
        budget,
    };
    volumes(&mut spec, issues);
    unserved(&mut spec, issues);
    spec.finish(issues);
    (template, restart)
}

/// HiveD's annotation.
pub(super) fn cell_annotation(
    path: String,
    value: &Value,
    issues: &mut FieldIssues,
) -> Option<CellAnnotation> {
    let text = value.as_str();
    if text.is_none() {
        issues.problem(path.clone(), "it must be a text; put | before its lines");
    }
    Some(CellAnnotation { path, text: text?.to_owned() })
}

/// `cells` of a pod's spec: the fields of HiveD's annotation as an object.
pub(super) fn cell_field(
    spec: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> Option<CellAnnotation> {
    let (path, value) = (spec.at("cells"), spec.take("cells")?);
    if !value.is_object() {
        issues.problem(path.clone(), "it must be an object with the fields of HiveD's annotation");
        return None;
    }
    Some(CellAnnotation { path, text: value.to_string() })
}

/// The request of the annotation, or of the field `cells`.
pub(super) fn one_request(
    annotation: Option<CellAnnotation>,
    field: Option<CellAnnotation>,
    issues: &mut FieldIssues,
) -> Option<CellAnnotation> {
    if let (Some(annotation), Some(field)) = (&annotation, &field) {
        let why = format!("{} says it, too; write one of them", annotation.path);
        issues.problem(field.path.clone(), why);
    }
    annotation.or(field)
}

fn unserved(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    spec.pass_over(
        &[
            "imagePullSecrets",
            "dnsPolicy",
            "dnsConfig",
            "schedulerName",
            "enableServiceLinks",
            "automountServiceAccountToken",
            "serviceAccount",
            "serviceAccountName",
            "tolerations",
            "hostNetwork",
            "hostIPC",
            "hostPID",
            "shareProcessNamespace",
            "topologySpreadConstraints",
            "runtimeClassName",
            "preemptionPolicy",
            "hostname",
            "subdomain",
            "setHostnameAsFQDN",
            "readinessGates",
        ],
        NOT_HERE,
        issues,
    );
    spec.pass_over(
        &["priorityClassName", "priority"],
        "the job's own priorityClassName counts",
        issues,
    );
    spec.refuse(
        &["initContainers", "ephemeralContainers"],
        "a node starts all processes of a pod at once; do it at the beginning of the command",
        issues,
    );
    spec.refuse(&["affinity", "nodeName"], "places are chosen by labels; use nodeSelector", issues);
    spec.refuse(
        &["hostAliases"],
        "names of other hosts must be known to the node; add them there",
        issues,
    );
    spec.refuse(
        &["activeDeadlineSeconds"],
        "a time limit is the job's; use its runPolicy.activeDeadlineSeconds",
        issues,
    );
}

fn node_selector(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Selector {
    let field = spec.at("nodeSelector");
    let wanted = texts_by_name(spec, "nodeSelector", issues);
    let parts: Vec<String> = wanted.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let parsed = parts.join(",").parse::<Selector>();
    parsed.unwrap_or_else(|error| {
        issues.problem(field, error.to_string());
        Selector::everything()
    })
}

fn texts_by_name(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    issues: &mut FieldIssues,
) -> BTreeMap<String, String> {
    let entries = fields.entries(name, issues);
    let entry = |(path, name, value): (String, &str, &Value)| match value {
        Value::String(text) => Some((name.to_owned(), text.clone())),
        _ => {
            issues.problem(path, "it must be a text; put quotes around it");
            None
        }
    };
    entries.into_iter().filter_map(entry).collect()
}

fn run_as(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Option<String> {
    let mut ctx = spec.object("securityContext", issues);
    let user = ctx.number("runAsUser", 0, issues);
    let group = ctx.number("runAsGroup", 0, issues);
    ctx.pass_over(
        &["fsGroup", "fsGroupChangePolicy", "runAsNonRoot", "seccompProfile", "supplementalGroups"],
        NOT_HERE,
        issues,
    );
    ctx.pass_over(&["sysctls", "seLinuxOptions", "windowsOptions"], NOT_HERE, issues);
    ctx.finish(issues);
    match (user, group) {
        (None, _) => None,
        (Some(user), None) => Some(user.to_string()),
        (Some(user), Some(group)) => Some(format!("{user}:{group}")),
    }
}

/// Accepts `hostPath`, and `emptyDir` and claims with a warning. Refuses other volumes: their data would be missing.
fn volumes(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    for (path, value) in spec.list("volumes", issues) {
        let mut volume = FieldReader::of(path, value, issues);
        volume.take("name");
        let own_host_path = volume.object("hostPath", issues);
        if !own_host_path.is_empty() {
            continue;
        }
        if volume.take("emptyDir").is_some() {
            issues.warning(
                volume.at("emptyDir"),
                "nothing is mounted: the program sees the node's own directory of that path",
            );
            continue;
        }
        if volume.take("persistentVolumeClaim").is_some() {
            let why = "no claim is mounted: put its data on the nodes, at the mountPath; the program sees the node's own files";
            issues.warning(volume.at("persistentVolumeClaim"), why);
            continue;
        }
        let mut known = value.as_object().into_iter().flatten().map(|(kind, _)| kind.as_str());
        let kind = known.find(|kind| *kind != "name").unwrap_or("source");
        let why =
            "processes have no volumes of this kind; put the data on the nodes and use hostPath";
        issues.problem(volume.at(kind), why);
    }
}

fn container(path: String, value: &Value, issues: &mut FieldIssues) -> Container {
    let mut fields = FieldReader::of(path, value, issues);
    let name = fields.text("name", issues).unwrap_or_default().to_owned();
    if let Err(error) = check_segment(&name) {
        issues.problem(fields.at("name"), error.to_string());
    }
    if fields.take("image").is_some() {
        let why = "no image is fetched: the command runs on the node as it is";
        issues.warning(fields.at("image"), why);
    }
    fields.pass_over(
        &[
            "imagePullPolicy",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "stdin",
            "stdinOnce",
            "tty",
            "volumeDevices",
        ],
        NOT_HERE,
        issues,
    );
    let mut command = fields.texts("command", issues);
    if command.is_empty() {
        let why = "without an image there is no program of its own; write what shall be run";
        issues.problem(fields.at("command"), why);
    }
    command.extend(fields.texts("args", issues));
    if command.iter().any(|word| word.contains(HOST_FILES)) {
        let why = "there are no files of the svc plugin in /etc/volcano; with the plugin they are in \
             $RCFARM_PEERS/etc/volcano, and the variables VC_<TASK>_HOSTS have the same addresses, divided by commas";
        issues.warning(fields.at("command"), why);
    }
    let ports = ports(&mut fields, issues);
    let container = Container {
        name,
        command,
        env: env(&mut fields, issues),
        cwd: fields.text("workingDir", issues).map(str::to_owned),
        health: health(&mut fields, &ports, issues),
        ports,
        requests: ResourceList::default(),
        limits: ResourceList::default(),
    };
    let (requests, limits) = resources(&mut fields, issues);
    mounts(&mut fields, issues);
    security(&mut fields, issues);
    fields.pass_over(
        &["livenessProbe", "startupProbe", "lifecycle"],
        "a check restarts nothing and nothing runs beside the program; use readinessProbe to have its health seen",
        issues,
    );
    fields.refuse(
        &["envFrom"],
        "there are no config maps and secrets; write the variables in env",
        issues,
    );
    fields.finish(issues);
    Container { requests, limits, ..container }
}

/// Refuses arguments and variables that outgrow their limits when they are expanded, as far as they do not depend on
/// the node.
fn check_sizes(path: &str, containers: &[Container], issues: &mut FieldIssues) {
    let words = |c: &Container| c.command.iter().map(String::len).sum::<usize>();
    let env =
        |c: &Container| c.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if let Err(error) = check_size(containers.iter().map(|c| words(c) + env(c)).sum()) {
        issues.problem(path, error.reason());
    }
    let mut bytes = 0;
    for (n, container) in containers.iter().enumerate() {
        let (list, expansion) = (container.env.clone(), Expansion::Kubernetes);
        let own = Variables { list, expansion };
        match Expanded::of(&container.command, &own, BTreeMap::new()) {
            Ok(expanded) => bytes += expanded.bytes,
            Err(error) => issues.problem(format!("{path}[{n}].{}", error.path), error.reason()),
        }
        if bytes > LONGEST_POD {
            let why = format!("arguments and variables of all are longer than {LONGEST_POD} bytes");
            issues.problem(path, why);
            return;
        }
    }
}

fn security(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    if fields.take("securityContext").is_some() {
        let why = "only the pod's own securityContext.runAsUser and runAsGroup are honoured";
        issues.warning(fields.at("securityContext"), why);
    }
}

/// Warns that nothing is mounted: the program sees the node's files at `mountPath`. Refuses sub-paths.
fn mounts(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    for (path, value) in fields.list("volumeMounts", issues) {
        let mut mount = FieldReader::of(path, value, issues);
        mount.take("name");
        for name in ["readOnly", "recursiveReadOnly", "mountPropagation"] {
            if mount.take(name).is_some() {
                let why = "nothing is mounted: the program may write what its user may write";
                issues.warning(mount.at(name), why);
            }
        }
        if mount.text("mountPath", issues).is_some() {
            let why = "nothing is mounted: the program sees the node's own files at that path";
            issues.warning(mount.at("mountPath"), why);
        }
        mount.refuse(
            &["subPath", "subPathExpr"],
            "nothing is mounted; name the path itself",
            issues,
        );
        mount.finish(issues);
    }
}

fn env(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Vec<(String, String)> {
    let mut env = Vec::new();
    for (path, value) in fields.list("env", issues) {
        let mut one = FieldReader::of(path, value, issues);
        let name = one.text("name", issues).unwrap_or_default().to_owned();
        if name.is_empty() || name.contains(['=', '\0']) {
            issues.problem(one.at("name"), "a variable needs a name without \"=\"");
        }
        let from = one.object("valueFrom", issues);
        let value = match one.take("value") {
            Some(Value::String(text)) => text.clone(),
            Some(_) => {
                issues.problem(one.at("value"), "it must be a text; put quotes around it");
                String::new()
            }
            None if from.is_empty() => String::new(),
            None => field_value(from, issues),
        };
        one.finish(issues);
        env.push((name, value));
    }
    env
}

/// `valueFrom.fieldRef`, for fields that the node agent knows.
fn field_value(mut from: FieldReader<'_>, issues: &mut FieldIssues) -> String {
    let mut field = from.object("fieldRef", issues);
    field.take("apiVersion");
    let path = field.text("fieldPath", issues);
    let value = match path {
        Some("metadata.name") => "$(RCFARM_POD)",
        Some("metadata.namespace") => NAMESPACE,
        Some("spec.nodeName") => "$(RCFARM_NODE)",
        Some("status.podIP" | "status.hostIP") => "$(RCFARM_NODE_ADDRESS)",
        Some(path) if super::cells::is_isolation(path) => "$(RCFARM_ISOLATION)",
        Some(other) => {
            let why = format!(
                "{other:?} is not known to nodes; they know metadata.name, metadata.namespace, spec.nodeName, status.podIP, \
                 status.hostIP, and HiveD's metadata.annotations['…/pod-leaf-cell-isolation']"
            );
            issues.problem(field.at("fieldPath"), why);
            ""
        }
        None => "",
    };
    from.refuse(
        &["configMapKeyRef", "secretKeyRef", "fileKeyRef"],
        "there are no config maps and secrets; write the value itself",
        issues,
    );
    let why = "requests and limits are not given to variables; write the value itself";
    from.refuse(&["resourceFieldRef"], why, issues);
    from.finish(issues);
    value.to_owned()
}

fn ports(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Vec<(Option<String>, u16)> {
    let mut ports = Vec::new();
    for (path, value) in fields.list("ports", issues) {
        let mut port = FieldReader::of(path, value, issues);
        let name = port.text("name", issues).map(str::to_owned);
        let number = port.number("containerPort", 1, issues);
        port.take("protocol");
        port.pass_over(&["hostPort", "hostIP"], NOT_HERE, issues);
        match number.map(u16::try_from) {
            Some(Ok(number)) => ports.push((name, number)),
            Some(Err(_)) => issues.problem(port.at("containerPort"), "ports end at 65535"),
            None => {}
        }
        port.finish(issues);
    }
    ports
}

/// Requests and limits. A limit without a request is also the request, as in Kubernetes.
fn resources(
    fields: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> (ResourceList, ResourceList) {
    let mut both = fields.object("resources", issues);
    let limits = amounts(&mut both, "limits", issues);
    let requests = amounts(&mut both, "requests", issues);
    for (name, limit) in limits.iter().filter(|(name, limit)| requests.amount(name) > *limit) {
        let (path, limit) = (both.at("requests"), ResourceList::spell(name, limit));
        let why = format!(
            "more {name} than the limit of {limit}, which Kubernetes refuses; the request counts"
        );
        issues.warning(path, why);
    }
    let requests = limits.iter().chain(requests.iter()).collect();
    both.pass_over(&["claims"], NOT_HERE, issues);
    both.finish(issues);
    (requests, limits)
}

fn amounts(
    both: &mut FieldReader<'_>,
    which: &'static str,
    issues: &mut FieldIssues,
) -> ResourceList {
    let mut amounts = ResourceList::default();
    for (path, name, value) in both.entries(which, issues) {
        if name == "ephemeral-storage" || name.starts_with("hugepages-") {
            issues.warning(path, "nodes do not count it; it is passed over");
            continue;
        }
        if name == super::cells::ENABLE {
            continue;
        }
        // `nvidia.com/gpu` is the node's `gpu`.
        let what = name.rsplit('/').next().unwrap_or(name);
        if let Err(error) = amounts.set(what, &plain(value)) {
            issues.problems.push(FieldError { path, ..error });
        }
    }
    amounts
}

/// Health check from a readiness probe.
fn health(
    fields: &mut FieldReader<'_>,
    ports: &[(Option<String>, u16)],
    issues: &mut FieldIssues,
) -> Option<HealthStanza> {
    let mut probe = fields.object("readinessProbe", issues);
    if probe.is_empty() {
        return None;
    }
    let mut check = HealthStanza::default();
    let mut http = probe.object("httpGet", issues);
    if !http.is_empty() {
        let port = probed(&mut http, ports, issues);
        let path = http.text("path", issues).unwrap_or_default().trim_start_matches('/');
        check.http = Some(format!("http://127.0.0.1:{port}/{path}"));
        http.pass_over(&["scheme", "host", "httpHeaders"], NOT_HERE, issues);
    }
    http.finish(issues);
    let mut tcp = probe.object("tcpSocket", issues);
    if !tcp.is_empty() {
        let port = probed(&mut tcp, ports, issues);
        check.tcp = Some(format!("127.0.0.1:{port}"));
        tcp.pass_over(&["host"], NOT_HERE, issues);
    }
    tcp.finish(issues);
    let mut exec = probe.object("exec", issues);
    if !exec.is_empty() {
        check.exec = Some(CommandStanza::Words(exec.texts("command", issues)));
    }
    exec.finish(issues);
    let targets = [check.http.is_some(), check.tcp.is_some(), check.exec.is_some()];
    if targets.into_iter().filter(|given| *given).count() != 1 {
        let why = "it needs one of httpGet, tcpSocket and exec, and not two: it could never pass";
        issues.problem(fields.at("readinessProbe"), why);
    }
    let mut seconds = |name| Some(format!("{}s", probe.seconds(name, 1, issues)?.as_secs()));
    check.interval = seconds("periodSeconds");
    check.timeout = seconds("timeoutSeconds");
    let mut count = |name| u32::try_from(probe.number(name, 1, issues)?).ok();
    check.passing_after = count("successThreshold");
    check.critical_after = count("failureThreshold");
    probe.pass_over(&["initialDelaySeconds", "terminationGracePeriodSeconds"], NOT_HERE, issues);
    probe.refuse(&["grpc"], "use httpGet, tcpSocket or exec", issues);
    probe.finish(issues);
    Some(check)
}

/// Port of a probe: a number, or the name of a container port.
fn probed(
    fields: &mut FieldReader<'_>,
    ports: &[(Option<String>, u16)],
    issues: &mut FieldIssues,
) -> u16 {
    let port = match fields.take("port") {
        Some(Value::String(name)) => {
            let named = ports.iter().find(|(own, _)| own.as_ref() == Some(name));
            named.map(|(_, port)| *port).or_else(|| name.parse().ok())
        }
        Some(number) => number.as_u64().and_then(|port| u16::try_from(port).ok()),
        None => None,
    };
    if port.is_none_or(|port| port == 0) {
        let why = "write a number from 1 to 65535, or the name of one of the container's ports";
        issues.problem(fields.at("port"), why);
    }
    port.unwrap_or_default()
}
