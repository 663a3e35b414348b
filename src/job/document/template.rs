//! Reads a Kubernetes pod template: what processes can serve of it, and a word about the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::fields::{FieldIssues, FieldReader};
use crate::ids::check_segment;
use crate::job::spec::{Container, Restart, Template};
use crate::labels::Selector;
use crate::manifest::Resources;

/// Words of a pod template for a restart.
pub const RESTARTS: [(&str, Restart); 3] =
    [("Always", Restart::Always), ("OnFailure", Restart::OnFailure), ("Never", Restart::Never)];

const NOT_HERE: &str = "it means nothing to processes on a node; it is passed over";

/// A template, and the restart policy that stands in it.
pub fn template(
    path: String,
    value: Option<&Value>,
    remarks: &mut FieldIssues,
) -> (Template, Option<Restart>) {
    let nothing = Value::Null;
    if value.is_none() {
        remarks.problem(path.clone(), "there is no pod template; write what shall run");
    }
    let mut fields = FieldReader::of(path, value.unwrap_or(&nothing), remarks);
    let mut metadata = fields.object("metadata", remarks);
    let labels = texts_by_name(&mut metadata, "labels", remarks);
    super::annotations(&mut metadata, &[], remarks);
    metadata.take("creationTimestamp");
    metadata.pass_over(&["name", "namespace"], "pods are named after their job", remarks);
    metadata.finish(remarks);
    let mut spec = fields.object("spec", remarks);
    fields.finish(remarks);

    let containers = spec.list("containers", remarks);
    if containers.is_empty() && value.is_some() {
        remarks.problem(spec.at("containers"), "a pod needs at least one container");
    }
    let containers: Vec<Container> =
        containers.into_iter().map(|(path, value)| container(path, value, remarks)).collect();
    for (n, one) in containers.iter().enumerate() {
        if containers[..n].iter().any(|other| other.name == one.name) {
            let field = format!("{}[{n}].name", spec.at("containers"));
            remarks.problem(field, format!("there is another container {:?}", one.name));
        }
    }
    let restart = spec.word("restartPolicy", &RESTARTS, remarks);
    let template = Template {
        containers,
        node_selector: node_selector(&mut spec, remarks),
        run_as: run_as(&mut spec, remarks),
        grace: spec
            .number("terminationGracePeriodSeconds", 0, remarks)
            .map(|n| Duration::from_secs(n.unsigned_abs())),
        labels,
    };
    volumes(&mut spec, remarks);
    unserved(&mut spec, remarks);
    spec.finish(remarks);
    (template, restart)
}

fn unserved(spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
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
        remarks,
    );
    spec.pass_over(
        &["priorityClassName", "priority"],
        "the job's own priorityClassName counts",
        remarks,
    );
    spec.refuse(
        &["initContainers", "ephemeralContainers"],
        "a node starts all processes of a pod at once; do it at the beginning of the command",
        remarks,
    );
    spec.refuse(
        &["affinity", "nodeName"],
        "places are chosen by labels; use nodeSelector",
        remarks,
    );
    spec.refuse(
        &["hostAliases"],
        "names of other hosts must be known to the node; add them there",
        remarks,
    );
    spec.refuse(
        &["activeDeadlineSeconds"],
        "a time limit is the job's; use its runPolicy.activeDeadlineSeconds",
        remarks,
    );
}

fn node_selector(spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> Selector {
    let field = spec.at("nodeSelector");
    let wanted = texts_by_name(spec, "nodeSelector", remarks);
    let parts: Vec<String> = wanted.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let parsed = parts.join(",").parse::<Selector>();
    parsed.unwrap_or_else(|error| {
        remarks.problem(field, error.to_string());
        Selector::everything()
    })
}

fn texts_by_name(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    remarks: &mut FieldIssues,
) -> BTreeMap<String, String> {
    let entries = fields.entries(name, remarks);
    let entry = |(path, name, value): (String, &str, &Value)| match value {
        Value::String(text) => Some((name.to_owned(), text.clone())),
        _ => {
            remarks.problem(path, "it must be a text; put quotes around it");
            None
        }
    };
    entries.into_iter().filter_map(entry).collect()
}

fn run_as(spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> Option<String> {
    let mut ctx = spec.object("securityContext", remarks);
    let user = ctx.number("runAsUser", 0, remarks);
    let group = ctx.number("runAsGroup", 0, remarks);
    ctx.pass_over(
        &["fsGroup", "fsGroupChangePolicy", "runAsNonRoot", "seccompProfile", "supplementalGroups"],
        NOT_HERE,
        remarks,
    );
    ctx.pass_over(&["sysctls", "seLinuxOptions", "windowsOptions"], NOT_HERE, remarks);
    ctx.finish(remarks);
    match (user, group) {
        (None, _) => None,
        (Some(user), None) => Some(user.to_string()),
        (Some(user), Some(group)) => Some(format!("{user}:{group}")),
    }
}

/// Of volumes, a path of the node that is mounted under its own name is there already; an empty directory is the
/// program's to make. Anything else would be other data than is meant.
fn volumes(spec: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    for (path, value) in spec.list("volumes", remarks) {
        let mut volume = FieldReader::of(path, value, remarks);
        volume.take("name");
        let own_host_path = volume.object("hostPath", remarks);
        if !own_host_path.is_empty() {
            continue;
        }
        if volume.take("emptyDir").is_some() {
            remarks.warning(
                volume.at("emptyDir"),
                "nothing is mounted: the program sees the node's own directory of that path",
            );
            continue;
        }
        let mut known = value.as_object().into_iter().flatten().map(|(kind, _)| kind.as_str());
        let kind = known.find(|kind| *kind != "name").unwrap_or("source");
        let why =
            "processes have no volumes of this kind; put the data on the nodes and use hostPath";
        remarks.problem(volume.at(kind), why);
    }
}

fn container(path: String, value: &Value, remarks: &mut FieldIssues) -> Container {
    let mut fields = FieldReader::of(path, value, remarks);
    let name = fields.text("name", remarks).unwrap_or_default().to_owned();
    if let Err(error) = check_segment(&name) {
        remarks.problem(fields.at("name"), error.to_string());
    }
    if fields.take("image").is_some() {
        let why = "no image is fetched: the command runs on the node as it is";
        remarks.warning(fields.at("image"), why);
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
        remarks,
    );
    let mut command = fields.texts("command", remarks);
    if command.is_empty() {
        let why = "without an image there is no program of its own; write what shall be run";
        remarks.problem(fields.at("command"), why);
    }
    command.extend(fields.texts("args", remarks));
    let ports = ports(&mut fields, remarks);
    let container = Container {
        name,
        command: command.iter().map(|word| variables(word)).collect(),
        env: env(&mut fields, remarks),
        cwd: fields.text("workingDir", remarks).map(str::to_owned),
        health: health(&mut fields, &ports, remarks),
        ports,
        requests: Resources::default(),
        limits: Resources::default(),
    };
    let (requests, limits) = resources(&mut fields, remarks);
    mounts(&mut fields, remarks);
    security(&mut fields, remarks);
    fields.pass_over(
        &["livenessProbe", "startupProbe", "lifecycle"],
        "a check restarts nothing and nothing runs beside the program; use readinessProbe to have its health seen",
        remarks,
    );
    fields.refuse(
        &["envFrom"],
        "there are no config maps and secrets; write the variables in env",
        remarks,
    );
    fields.finish(remarks);
    Container { requests, limits, ..container }
}

fn security(fields: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    if fields.take("securityContext").is_some() {
        let why = "only the pod's own securityContext.runAsUser and runAsGroup are honoured";
        remarks.warning(fields.at("securityContext"), why);
    }
}

/// A mount is honoured when it shows a path of the node under its own name; the volumes themselves are judged above.
fn mounts(fields: &mut FieldReader<'_>, remarks: &mut FieldIssues) {
    for (path, value) in fields.list("volumeMounts", remarks) {
        let mut mount = FieldReader::of(path, value, remarks);
        mount.take("name");
        mount.take("readOnly");
        mount.take("mountPropagation");
        mount.take("recursiveReadOnly");
        if mount.text("mountPath", remarks).is_some() {
            let why = "nothing is mounted: the program sees the node's own files at that path";
            remarks.warning(mount.at("mountPath"), why);
        }
        mount.refuse(
            &["subPath", "subPathExpr"],
            "nothing is mounted; name the path itself",
            remarks,
        );
        mount.finish(remarks);
    }
}

/// Kubernetes writes `$(NAME)`, and `$$(NAME)` for the text itself; the node's agent writes `${NAME}`.
fn variables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let name = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match name {
            _ if after.starts_with('$') => {
                out.push('$');
                rest = &after[1..];
            }
            Some((name, tail)) => {
                out.push_str(&format!("${{{name}}}"));
                rest = tail;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn env(fields: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> Vec<(String, String)> {
    let mut env = Vec::new();
    for (path, value) in fields.list("env", remarks) {
        let mut one = FieldReader::of(path, value, remarks);
        let name = one.text("name", remarks).unwrap_or_default().to_owned();
        if name.is_empty() || name.contains(['=', '\0']) {
            remarks.problem(one.at("name"), "a variable needs a name without \"=\"");
        }
        let from = one.object("valueFrom", remarks);
        let value = match one.take("value") {
            Some(Value::String(text)) => variables(text),
            Some(_) => {
                remarks.problem(one.at("value"), "it must be a text; put quotes around it");
                String::new()
            }
            None if from.is_empty() => String::new(),
            None => field_value(from, remarks),
        };
        one.finish(remarks);
        env.push((name, value));
    }
    env
}

/// `valueFrom.fieldRef`, of the fields that a node knows.
fn field_value(mut from: FieldReader<'_>, remarks: &mut FieldIssues) -> String {
    let mut field = from.object("fieldRef", remarks);
    field.take("apiVersion");
    let path = field.text("fieldPath", remarks);
    let value = match path {
        Some("metadata.name") => "${RCFARM_POD}",
        Some("spec.nodeName") => "${RCFARM_NODE}",
        Some("status.podIP" | "status.hostIP") => "${RCFARM_NODE_ADDRESS}",
        Some(other) => {
            let why = format!(
                "{other:?} is not known to nodes; they know metadata.name, spec.nodeName, status.podIP, status.hostIP"
            );
            remarks.problem(field.at("fieldPath"), why);
            ""
        }
        None => "",
    };
    from.refuse(
        &["configMapKeyRef", "secretKeyRef", "resourceFieldRef", "fileKeyRef"],
        "there are no config maps and secrets; write the value itself",
        remarks,
    );
    from.finish(remarks);
    value.to_owned()
}

fn ports(fields: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> Vec<(Option<String>, u16)> {
    let mut ports = Vec::new();
    for (path, value) in fields.list("ports", remarks) {
        let mut port = FieldReader::of(path, value, remarks);
        let name = port.text("name", remarks).map(str::to_owned);
        let number = port.number("containerPort", 1, remarks);
        port.take("protocol");
        port.pass_over(&["hostPort", "hostIP"], NOT_HERE, remarks);
        match number.map(u16::try_from) {
            Some(Ok(number)) => ports.push((name, number)),
            Some(Err(_)) => remarks.problem(port.at("containerPort"), "ports end at 65535"),
            None => {}
        }
        port.finish(remarks);
    }
    ports
}

/// What is reserved, and what is enforced. What is limited and not requested is requested, as Kubernetes has it.
fn resources(fields: &mut FieldReader<'_>, remarks: &mut FieldIssues) -> (Resources, Resources) {
    let mut both = fields.object("resources", remarks);
    let limits = amounts(&mut both, "limits", remarks);
    let mut requests = limits.clone();
    requests.extend(amounts(&mut both, "requests", remarks));
    both.pass_over(&["claims"], NOT_HERE, remarks);
    both.finish(remarks);
    let set = |amounts: BTreeMap<String, String>| {
        let mut resources = Resources::default();
        for (what, amount) in amounts {
            // Checked when it was read.
            let _ = resources.set(&what, &amount);
        }
        resources
    };
    (set(requests), set(limits))
}

fn amounts(
    both: &mut FieldReader<'_>,
    which: &'static str,
    remarks: &mut FieldIssues,
) -> BTreeMap<String, String> {
    let mut amounts = BTreeMap::new();
    for (path, name, value) in both.entries(which, remarks) {
        if name == "ephemeral-storage" || name.starts_with("hugepages-") {
            remarks.warning(path, "nodes do not count it; it is passed over");
            continue;
        }
        let amount = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // `nvidia.com/gpu` is a `gpu` of the node.
        let what = name.rsplit('/').next().unwrap_or(name);
        match Resources::default().set(what, &amount) {
            Ok(()) => drop(amounts.insert(what.to_owned(), amount)),
            Err(error) => remarks.problem(path, error.to_string()),
        }
    }
    amounts
}

/// A readiness probe in the manifest's form.
fn health(
    fields: &mut FieldReader<'_>,
    ports: &[(Option<String>, u16)],
    remarks: &mut FieldIssues,
) -> Option<Value> {
    let mut probe = fields.object("readinessProbe", remarks);
    if probe.is_empty() {
        return None;
    }
    let mut check = serde_json::Map::new();
    let mut http = probe.object("httpGet", remarks);
    if !http.is_empty() {
        let port = probed(&mut http, ports, remarks);
        let path = http.text("path", remarks).unwrap_or_default().trim_start_matches('/');
        check.insert("http".to_owned(), json!(format!("http://127.0.0.1:{port}/{path}")));
        http.pass_over(&["scheme", "host", "httpHeaders"], NOT_HERE, remarks);
    }
    http.finish(remarks);
    let mut tcp = probe.object("tcpSocket", remarks);
    if !tcp.is_empty() {
        let port = probed(&mut tcp, ports, remarks);
        check.insert("tcp".to_owned(), json!(format!("127.0.0.1:{port}")));
        tcp.pass_over(&["host"], NOT_HERE, remarks);
    }
    tcp.finish(remarks);
    let mut exec = probe.object("exec", remarks);
    if !exec.is_empty() {
        check.insert("exec".to_owned(), json!(exec.texts("command", remarks)));
    }
    exec.finish(remarks);
    if check.len() != 1 {
        let why = "it needs one of httpGet, tcpSocket and exec, and not two: it could never pass";
        remarks.problem(fields.at("readinessProbe"), why);
    }
    for (name, ours) in [("periodSeconds", "interval"), ("timeoutSeconds", "timeout")] {
        if let Some(seconds) = probe.number(name, 1, remarks) {
            check.insert(ours.to_owned(), json!(format!("{seconds}s")));
        }
    }
    for (name, ours) in
        [("successThreshold", "passing_after"), ("failureThreshold", "critical_after")]
    {
        if let Some(count) = probe.number(name, 1, remarks) {
            check.insert(ours.to_owned(), json!(count));
        }
    }
    probe.pass_over(&["initialDelaySeconds", "terminationGracePeriodSeconds"], NOT_HERE, remarks);
    probe.refuse(&["grpc"], "use httpGet, tcpSocket or exec", remarks);
    probe.finish(remarks);
    Some(Value::Object(check))
}

/// The port of a check: a number, or the name of one of the container's.
fn probed(
    fields: &mut FieldReader<'_>,
    ports: &[(Option<String>, u16)],
    remarks: &mut FieldIssues,
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
        remarks.problem(fields.at("port"), why);
    }
    port.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_kubernetes_become_those_of_a_node() {
        for (text, ours) in [
            ("--master=$(MASTER_ADDR):$(MASTER_PORT)", "--master=${MASTER_ADDR}:${MASTER_PORT}"),
            ("$$(HOME) costs 5$", "$(HOME) costs 5$"),
            ("$(OPEN", "$(OPEN"),
            ("${SHELL}", "${SHELL}"),
        ] {
            assert_eq!(variables(text), ours);
        }
    }
}
