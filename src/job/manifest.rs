//! The manifest of a member's pod. Pure.
//!
//! It is JSON, so it is YAML, too. Besides the agent's fields it names job, member and attempt (`job`), so no two
//! attempts have the same text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::frameworks::{self, Cluster, ClusterPeer, Variable, mpi};
use super::peers;
use super::plan::Create;
use super::services::{self, ServicesObserved};
use rcfarm_api::ids::{Namespaced, NodeName, PodId};
pub use rcfarm_api::job::identity::PodIdentity;
use rcfarm_api::job::spec::{Container, Framework, JobSpec, JobUid, Restart, Slot};
use rcfarm_api::manifest::{
    CommandStanza, EnvStanza, EnvVariable, HealthStanza, LaunchableStanza, LimitsStanza, PROCESS,
    PodManifest, ProcessStanza, RestartStanza, RestartWhen, ServiceStanza,
};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_api::resource_list::{CPU, MEMORY, ResourceList};

/// Input of a manifest: a job with bound members.
pub struct Placed<'a> {
    /// Namespace and name of the job.
    pub id: &'a Namespaced,
    /// CreateIndex of the record.
    pub uid: JobUid,
    pub job: &'a JobSpec,
    /// Nodes by member.
    pub places: &'a BTreeMap<Slot, NodeName>,
    /// Ports that nodes gave to members.
    pub ports: &'a BTreeMap<Slot, u16>,
    /// Network address of a node's pods.
    pub address: &'a (dyn Fn(&NodeName) -> String + Sync),
    /// How the pods are named.
    pub pod_ids: PodIdFormat,
    /// Of an array: the indexes of the members' tasks.
    pub tasks: Option<&'a BTreeMap<u32, u32>>,
}

impl Placed<'_> {
    /// Address and port offset of each placed member. Members at the same address get offsets 0, 1, … in task order.
    #[must_use]
    pub fn peers(&self) -> BTreeMap<Slot, ClusterPeer> {
        let mut at: BTreeMap<String, u16> = BTreeMap::new();
        let mut peers = BTreeMap::new();
        for task in &self.job.tasks {
            for index in 0..task.replicas {
                let slot = Slot::new(&task.name, index);
                let Some(node) = self.places.get(&slot) else { continue };
                let host = (self.address)(node);
                let count = at.entry(host.clone()).or_default();
                let assigned = self.ports.get(&slot).copied();
                peers.insert(slot, ClusterPeer { host, offset: *count, assigned });
                *count = count.saturating_add(1);
            }
        }
        peers
    }

    /// Identity of a pod, written to its manifest and labels.
    #[must_use]
    pub fn identity(&self, create: &Create) -> PodIdentity {
        PodIdentity {
            job: self.id.clone(),
            uid: self.uid,
            slot: create.slot.clone(),
            version: create.version,
            attempt: create.attempt,
        }
    }

    /// Manifest of a pod. `peers`: from [`Placed::peers`].
    #[must_use]
    pub fn manifest(
        &self,
        create: &Create,
        pod: &PodId,
        peers: &BTreeMap<Slot, ClusterPeer>,
    ) -> String {
        let Some(task) = self.job.task(&create.slot.task) else { return String::new() };
        let template = &task.template;
        let launchables = template.containers.iter().map(|container| {
            let stanza = self.launchable(container, task.restart, create, peers);
            (container.name.clone(), LaunchableStanza::Process(Box::new(stanza)))
        });
        let manifest = PodManifest {
            id: pod.to_string(),
            job: Some(json!(self.identity(create))),
            launchables: launchables.collect(),
            resources: amounts(&template.resources()),
            payload: self.job.payload.clone(),
            run_as: template.run_as.as_ref().map(|user| json!(user)),
            resource_limits: limits(&template.containers),
            services: self.service(&create.slot, peers).into_iter().collect(),
            peers: peers::stanza(self.job, &create.slot),
            ..PodManifest::default()
        };
        manifest.text()
    }

    /// The service of a member that gets a pod: the pod before it took its own along.
    fn service(&self, slot: &Slot, peers: &BTreeMap<Slot, ClusterPeer>) -> Option<ServiceStanza> {
        let seen = ServicesObserved {
            id: self.id,
            job: self.job,
            task: self.job.task(&slot.task)?,
            wanted: slot.index..slot.index.checked_add(1)?,
            own: &[],
            peer: &|slot| peers.get(slot).cloned(),
        };
        services::reconcile(&seen).create.remove(&slot.index)
    }

    /// Members of an array have the index of their task, in place of their own.
    fn with_array_index(&self, mut injected: Vec<Variable>, slot: &Slot) -> Vec<Variable> {
        let Some(index) = self.tasks.and_then(|tasks| tasks.get(&slot.index)) else {
            return injected;
        };
        for variable in &mut injected {
            if frameworks::TASK_INDEX.contains(&variable.name.as_str()) {
                variable.value = index.to_string();
            }
        }
        injected.push(frameworks::everywhere("RCFARM_ARRAY_INDEX", index));
        injected
    }

    fn launchable(
        &self,
        container: &Container,
        restart: Restart,
        create: &Create,
        peers: &BTreeMap<Slot, ClusterPeer>,
    ) -> ProcessStanza {
        let nowhere = ClusterPeer { host: String::new(), offset: 0, assigned: None };
        let peer = |slot: &Slot| peers.get(slot).unwrap_or(&nowhere).clone();
        let cluster = Cluster { id: self.id, job: self.job, peer: &peer };
        let injected = frameworks::of(self.job.framework).environment(&cluster, &create.slot);
        let variables = variables(container, self.with_array_index(injected, &create.slot));
        let launcher = self.job.framework == Framework::Mpi && create.slot.task == "Launcher";
        let command = match launcher {
            true => mpi::hostfile_command(&container.command),
            false => container.command.clone(),
        };
        let task = self.job.task(&create.slot.task);
        let health = container.health.as_ref().map(|health| {
            let port =
                task.and_then(|task| frameworks::of(self.job.framework).listens(self.job, task));
            let own = peer(&create.slot);
            port.map_or(health.clone(), |port| moved(health, port, own.port(port)))
        });
        let grace = task.and_then(|task| task.template.grace);
        let env = env(variables, &command, container.cwd.as_deref(), health.as_ref());
        ProcessStanza {
            launchable_type: PROCESS.to_owned(),
            command: CommandStanza::Words(command),
            restart: Some(RestartStanza::Word(restart_of(self.job, restart))),
            env,
            cwd: container.cwd.clone(),
            health,
            grace: grace.map(|grace| format!("{}s", grace.as_secs())),
            ..ProcessStanza::default()
        }
    }
}

/// Variables of a container: the framework's first, so that the container's own may refer to them. The framework's
/// replace the container's own of that name, unless they are defaults.
fn variables(container: &Container, injected: Vec<Variable>) -> Vec<EnvVariable> {
    let own: BTreeSet<&str> = container.env.iter().map(|(name, _)| name.as_str()).collect();
    let applies = |variable: &Variable| {
        let is_set = variable.is_default && own.contains(variable.name.as_str());
        variable.container.as_ref().is_none_or(|only| *only == container.name) && !is_set
    };
    let injected = injected.into_iter().filter(applies);
    let mut all: Vec<EnvVariable> = injected
        .map(|variable| EnvVariable { name: variable.name, value: variable.value })
        .collect();
    let names: BTreeSet<String> = all.iter().map(|variable| variable.name.clone()).collect();
    let own = container.env.iter().filter(|(name, _)| !names.contains(name));
    all.extend(own.map(|(name, value)| EnvVariable { name: name.clone(), value: value.clone() }));
    all
}

/// The variables as a list, which agents expand as Kubernetes does, or as a map if no text refers to a variable: agents
/// from before know only maps.
fn env(
    all: Vec<EnvVariable>,
    command: &[String],
    cwd: Option<&str>,
    health: Option<&HealthStanza>,
) -> EnvStanza {
    let exec = match health.and_then(|health| health.exec.as_ref()) {
        Some(CommandStanza::Words(words)) => words.as_slice(),
        _ => &[],
    };
    let targets = health.into_iter().flat_map(|health| [&health.http, &health.tcp]);
    let texts = all
        .iter()
        .map(|variable| variable.value.as_str())
        .chain(command.iter().chain(exec).map(String::as_str))
        .chain(targets.flatten().map(String::as_str))
        .chain(cwd);
    let refers = { texts }.any(|text| text.contains('$'));
    if refers {
        return EnvStanza::List(all);
    }
    EnvStanza::Map(all.into_iter().map(|one| (one.name, one.value.into())).collect())
}

/// Directs a health check of the framework's port to the member's own port.
fn moved(health: &HealthStanza, port: u16, own: u16) -> HealthStanza {
    let mut health = health.clone();
    let targets =
        [(&mut health.tcp, "127.0.0.1:", ""), (&mut health.http, "http://127.0.0.1:", "/")];
    for (target, before, end) in targets {
        let asked = target.as_deref();
        let rest = asked.and_then(|asked| asked.strip_prefix(&format!("{before}{port}")));
        let Some(rest) =
            rest.filter(|rest| rest.starts_with(end) && rest.is_empty() == end.is_empty())
        else {
            continue;
        };
        *target = Some(format!("{before}{own}{rest}"));
    }
    health
}

/// Restart policy of the node agent; other restarts are decided by the job's controller.
fn restart_of(job: &JobSpec, restart: Restart) -> RestartWhen {
    match restart {
        // The others of the gang must learn of it.
        _ if job.restarts_gang => RestartWhen::Never,
        Restart::Always => RestartWhen::Always,
        Restart::OnFailure => RestartWhen::OnFailure,
        Restart::Never | Restart::ExitCode => RestartWhen::Never,
    }
}

fn amounts(resources: &ResourceList) -> BTreeMap<String, Value> {
    let value = |(name, amount): (&str, u64)| match name {
        CPU => (name.to_owned(), json!(format!("{amount}m"))),
        _ => (name.to_owned(), json!(amount)),
    };
    resources.nonzero().iter().map(value).collect()
}

/// Limits of a pod: the sum over its containers. A resource is unlimited unless every container limits it.
fn limits(containers: &[Container]) -> Option<LimitsStanza> {
    let sum = ResourceList::sum(containers.iter().map(|container| &container.limits));
    let is_limited = |name| containers.iter().all(|container| container.limits.amount(name) > 0);
    let limited = [CPU, MEMORY].into_iter().filter(|name| is_limited(name));
    let limits = LimitsStanza::of(&limited.map(|name| (name, sum.amount(name))).collect());
    (!limits.cgroup.is_empty()).then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::writes;
    use rcfarm_api::Index;
    use rcfarm_api::manifest::{Manifest, ServicePort};
    use rcfarm_node::spec::{LaunchSpec, PodSpec};

    /// A job's placement without ports.
    fn placed<'a>(
        id: &'a Namespaced,
        job: &'a JobSpec,
        places: &'a BTreeMap<Slot, NodeName>,
        address: &'a (dyn Fn(&NodeName) -> String + Sync),
    ) -> Placed<'a> {
        static NO_PORTS: BTreeMap<Slot, u16> = BTreeMap::new();
        let (uid, pod_ids) = (JobUid(Index(7)), PodIdFormat::Plain);
        Placed { id, uid, job, places, ports: &NO_PORTS, address, pod_ids, tasks: None }
    }

    /// Bytes of the manifest of the last worker of a gang, whose members are on a node each.
    fn bytes_of_worker(document: &Value) -> usize {
        let id: Namespaced = "default/t".parse().unwrap();
        let job = crate::job::document::read(&id, document).unwrap().spec;
        let slots = |task: &rcfarm_api::job::spec::JobTask| -> Vec<Slot> {
            (0..task.replicas).map(|index| Slot::new(&task.name, index)).collect()
        };
        let node = |n: usize| format!("node-{n:04}.example.com").parse().unwrap();
        let places: BTreeMap<Slot, NodeName> =
            job.tasks.iter().flat_map(slots).enumerate().map(|(n, slot)| (slot, node(n))).collect();
        // Addresses of the usual length, such as 10.12.101.117.
        let numbers: BTreeMap<&NodeName, usize> = places.values().zip(0..).collect();
        let address = |node: &NodeName| {
            let n = numbers[node];
            format!("10.12.{}.{}", 100 + n / 156, 100 + n % 156)
        };
        let placed = placed(&id, &job, &places, &address);
        let (slot, node) = places.last_key_value().unwrap();
        let pod = slot.pod_id(&id, PodIdFormat::Hashed).unwrap();
        let create = Create { slot: slot.clone(), node: node.clone(), version: 0, attempt: 0 };
        placed.manifest(&create, &pod, &placed.peers()).len()
    }

    /// The figures of docs/decisions/0028-peers-stay-in-the-manifest.md.
    #[test]
    fn bytes_of_a_member_by_framework() {
        let containers = |name: &str| {
            json!({"spec": {"restartPolicy": "Never",
                "containers": [{"name": name, "command": ["python3", "train.py"]}]}})
        };
        let operator = |kind: &str, specs: &str, tasks: &[(&str, u32)], name: &str| {
            let task = |(task, n): &(&str, u32)| {
                ((*task).to_owned(), json!({"replicas": n, "template": containers(name)}))
            };
            let tasks: serde_json::Map<String, Value> = tasks.iter().map(task).collect();
            json!({"kind": kind, "spec": {specs: tasks}})
        };
        let torch = |n| {
            operator(
                "PyTorchJob",
                "pytorchReplicaSpecs",
                &[("Master", 1), ("Worker", n)],
                "pytorch",
            )
        };
        let tensorflow = |n| operator("TFJob", "tfReplicaSpecs", &[("Worker", n)], "tensorflow");
        let mpi =
            |n| operator("MPIJob", "mpiReplicaSpecs", &[("Launcher", 1), ("Worker", n)], "mpi");
        let volcano = |n: u32| {
            json!({"spec": {"plugins": {"svc": []}, "tasks": [
                {"name": "worker", "replicas": n, "template": containers("main")}]}})
        };
        let frameworks: [(&str, &dyn Fn(u32) -> Value); 4] = [
            ("PyTorch", &torch),
            ("MPI", &mpi),
            ("TensorFlow", &tensorflow),
            ("Volcano", &volcano),
        ];
        for (name, document) in frameworks {
            let [few, many] = [100, 1_000].map(|n| bytes_of_worker(&document(n)));
            println!("{name}: {few} of 100, {many} of 1,000");
            let per_peer = (many - few) / 900;
            let expected = match name {
                // An address in a string in a string, with its port.
                "TensorFlow" => 23,
                // An address in a list.
                "Volcano" => 14,
                _ => 0,
            };
            assert_eq!(per_peer, expected, "{name}: {few}, {many}");
        }
    }

    /// Addresses that are longer than the document's check expects.
    #[test]
    fn members_whose_peers_do_not_fit_into_a_variable_are_not_made() {
        let id: Namespaced = "default/t".parse().unwrap();
        let document = |workers: u32| {
            let container = json!({"name": "tensorflow", "command": ["t"]});
            let worker =
                json!({"replicas": workers, "template": {"spec": {"containers": [container]}}});
            json!({"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": worker}}})
        };
        let address = |node: &NodeName| format!("{node}.rack.example.com");
        let check = |workers: u32, first: usize| {
            let job = crate::job::document::read(&id, &document(workers)).unwrap().spec;
            let node = |n: u32| format!("node-{n:05}").parse::<NodeName>().unwrap();
            let slots = (0..workers).map(|n| (Slot::new("Worker", n), node(n)));
            let places: BTreeMap<Slot, NodeName> = slots.collect();
            let placed = placed(&id, &job, &places, &address);
            let creates = (0..workers).map(|n| {
                let slot = Slot::new("Worker", n);
                Create { node: node(n), slot, version: 0, attempt: 0 }
            });
            let creates: Vec<Create> = creates.collect();
            let (now, later) = creates.split_at(first);
            writes::check_strings(&placed, &writes::made(&placed, now), later)
        };
        check(3_000, 1).unwrap();
        let error = check(4_000, 1).unwrap_err();
        assert_eq!(error.path, "launchables.tensorflow.env.TF_CONFIG");
        assert!(error.problem.contains("MAX_ARG_STRLEN"), "{error}");
    }

    #[test]
    fn members_parse_as_pods_and_do_not_collide_on_a_node() {
        let id: Namespaced = "default/t".parse().unwrap();
        let container = json!({"name": "pytorch", "command": ["python3", "t.py", "$(MASTER_ADDR)"],
            "workingDir": "/srv", "env": [{"name": "A", "value": "1"}, {"name": "RANK", "value": "9"}],
            "resources": {"limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}},
            "readinessProbe": {"tcpSocket": {"port": 23456}, "periodSeconds": 5}});
        let member = |n: u32| {
            json!({"replicas": n, "template": {"spec": {
            "containers": [container], "terminationGracePeriodSeconds": 30}}})
        };
        let document = json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {
            "Master": member(1), "Worker": member(2)}}});
        let job = crate::job::document::read(&id, &document).unwrap().spec;
        let places = [("Master", 0, "n1"), ("Worker", 0, "n2"), ("Worker", 1, "n1")];
        let places: BTreeMap<Slot, NodeName> = places
            .into_iter()
            .map(|(task, index, node)| (Slot::new(task, index), node.parse().unwrap()))
            .collect();
        let address = |node: &NodeName| format!("10.0.0.{}", &node.as_str()[1..]);
        let placed = placed(&id, &job, &places, &address);
        let peers = placed.peers();
        assert_eq!(
            peers[&Slot::new("Worker", 1)],
            ClusterPeer { host: "10.0.0.1".into(), offset: 1, assigned: None }
        );
        let create = Create {
            slot: Slot::new("Worker", 1),
            node: "n1".parse().unwrap(),
            version: 2,
            attempt: 3,
        };
        let pod = create.slot.pod_id(&id, PodIdFormat::Plain).unwrap();
        let text = placed.manifest(&create, &pod, &peers);
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.id().as_str(), "t-worker-1");
        let spec = PodSpec::read(&manifest).unwrap();
        assert_eq!(spec.resources, "cpu=2,memory=1Gi,gpu=1".parse().unwrap());
        assert_eq!(spec.limits.to_string(), "cpu=2,memory=1Gi");
        let LaunchSpec::Process(process) = &spec.launchables["pytorch"] else { panic!("{spec:?}") };
        assert_eq!(process.command, ["python3", "t.py", "$(MASTER_ADDR)"]);
        let variables: BTreeMap<String, String> = process.env.list.iter().cloned().collect();
        assert_eq!((variables["A"].as_str(), variables["RANK"].as_str()), ("1", "2"));
        assert_eq!(variables["MASTER_ADDR"], "10.0.0.1");
        assert_eq!(process.grace.as_secs(), 30);
        let check = process.health.as_ref().unwrap();
        assert!(
            format!("{check:?}").contains("127.0.0.1:23457"),
            "where this one listens: {check:?}"
        );
        let other = Create { attempt: 4, ..create.clone() };
        assert_ne!(placed.manifest(&other, &pod, &peers), text, "each try has a text of its own");
        let identity = manifest.fields().unwrap()["job"].clone();
        assert_eq!(
            serde_json::from_value::<PodIdentity>(identity).unwrap(),
            placed.identity(&create)
        );
    }

    /// Node agents restart a running pod whose manifest's text changes.
    #[test]
    fn manifests_of_the_sample_documents_keep_their_text() {
        let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/fuzz/job_document");
        let mut lines = Vec::new();
        for sample in ["mpi", "pod", "pytorch", "tensorflow", "volcano", "xgboost"] {
            let text = std::fs::read_to_string(format!("{samples}/{sample}")).unwrap();
            let document = crate::job::document::from_yaml(&text).unwrap();
            let id = crate::job::document::name(&document).unwrap();
            let job = crate::job::document::read(&id, &document).unwrap().spec;
            let slots = job
                .tasks
                .iter()
                .flat_map(|task| (0..task.replicas).map(|index| Slot::new(&task.name, index)));
            let node = |n: usize| format!("n{}", n % 2).parse::<NodeName>().unwrap();
            let places: BTreeMap<Slot, NodeName> =
                slots.enumerate().map(|(n, slot)| (slot, node(n))).collect();
            let address = |node: &NodeName| format!("{node}.example");
            let placed = placed(&id, &job, &places, &address);
            for (slot, node) in &places {
                let create =
                    Create { slot: slot.clone(), node: node.clone(), version: 2, attempt: 1 };
                let pod = slot.pod_id(&id, PodIdFormat::Plain).unwrap();
                lines.push(placed.manifest(&create, &pod, &placed.peers()));
            }
        }
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn health_check_port_follows_the_assigned_port_only() {
        for (check, asked, then) in [
            ("tcp", "127.0.0.1:2222", "127.0.0.1:2225"),
            ("tcp", "127.0.0.1:22222", "127.0.0.1:22222"),
            ("http", "http://127.0.0.1:2222/a", "http://127.0.0.1:2225/a"),
            ("http", "http://127.0.0.1:22223/", "http://127.0.0.1:22223/"),
        ] {
            let stanza = |target: &str| {
                serde_json::from_value::<HealthStanza>(json!({check: target})).unwrap()
            };
            assert_eq!(moved(&stanza(asked), 2222, 2225), stanza(then));
        }
    }

    #[test]
    fn user_mpi_launch_settings_override_ours() {
        let id: Namespaced = "default/t".parse().unwrap();
        let member = json!({"replicas": 1, "template": {"spec": {"containers": [
            {"name": "mpi", "command": ["mpirun"], "env": [
                {"name": "I_MPI_HYDRA_BOOTSTRAP", "value": "slurm"},
                {"name": "I_MPI_HYDRA_HOST_FILE", "value": "/nowhere"}]}]}}});
        let document = json!({"kind": "MPIJob", "spec": {"mpiReplicaSpecs": {"Launcher": member}}});
        let job = crate::job::document::read(&id, &document).unwrap().spec;
        let slot = Slot::new("Launcher", 0);
        let places = [(slot.clone(), "n1".parse().unwrap())].into();
        let address = |_: &NodeName| "h".to_owned();
        let placed = placed(&id, &job, &places, &address);
        let create = Create { slot, node: "n1".parse().unwrap(), version: 0, attempt: 0 };
        let pod = create.slot.pod_id(&id, PodIdFormat::Plain).unwrap();
        let manifest: Value =
            serde_json::from_str(&placed.manifest(&create, &pod, &placed.peers())).unwrap();
        let env = manifest["launchables"]["mpi"]["env"].as_array().unwrap();
        let value = |name: &str| {
            let mut named = env.iter().filter(|variable| variable["name"] == name);
            named.next_back().unwrap()["value"].clone()
        };
        assert_eq!(value("I_MPI_HYDRA_BOOTSTRAP"), "slurm");
        assert_eq!(value("OMPI_MCA_plm_rsh_agent"), "ssh");
        assert_eq!(value("I_MPI_HYDRA_HOST_FILE"), "$(POD_HOME)/hostfile", "it is written there");
    }

    #[test]
    fn members_of_a_job_with_the_plugin_svc_have_services() {
        let id: Namespaced = "team-a/train".parse().unwrap();
        let services = |id: &Namespaced, plugins: Value| {
            let container = json!({"name": "c", "command": ["t"]});
            let task = |name: &str| json!({"name": name, "replicas": 1, "template": {"spec": {"containers": [container]}}});
            let document =
                json!({"spec": {"plugins": plugins, "tasks": [task("master"), task("worker")]}});
            let job = crate::job::document::read(id, &document).unwrap().spec;
            let slots = [Slot::new("master", 0), Slot::new("worker", 0)];
            let places = slots.iter().map(|slot| (slot.clone(), "n1".parse().unwrap())).collect();
            let ports = [(slots[0].clone(), 20_001)].into();
            let address = |_: &NodeName| "h".to_owned();
            let placed = Placed { ports: &ports, ..placed(id, &job, &places, &address) };
            slots.map(|slot| {
                let create = Create { slot, node: "n1".parse().unwrap(), version: 0, attempt: 0 };
                let pod = create.slot.pod_id(id, PodIdFormat::Plain).unwrap();
                let manifest = Manifest::parse(&placed.manifest(&create, &pod, &placed.peers()));
                let pod = rcfarm_api::manifest::PodManifest::read(&manifest.unwrap()).unwrap();
                pod.check_ports_and_services().unwrap();
                pod.services
            })
        };
        assert_eq!(services(&id, json!({"env": []})), [vec![], vec![]]);
        let [master, worker] = services(&id, json!({"svc": [], "pytorch": []}));
        assert_eq!(master[0].name, "train-master-0");
        assert_eq!(master[0].tags, ["team-a", "train", "master", "0"]);
        assert_eq!(master[0].port, Some(ServicePort::Number(20_001)));
        assert_eq!((worker[0].name.as_str(), &worker[0].port), ("train-worker-0", &None));
    }

    #[test]
    fn health_check_of_a_volcano_master_follows_its_assigned_port() {
        let id: Namespaced = "default/t".parse().unwrap();
        let container = json!({"name": "c", "command": ["t"],
            "readinessProbe": {"tcpSocket": {"port": 23456}}});
        let task = |name: &str| json!({"name": name, "replicas": 1, "template": {"spec": {"containers": [container]}}});
        let document = json!({"spec": {"plugins": {"pytorch": []},
            "tasks": [task("master"), task("worker")]}});
        let job = crate::job::document::read(&id, &document).unwrap().spec;
        let slots = [Slot::new("master", 0), Slot::new("worker", 0)];
        let places = slots.iter().map(|slot| (slot.clone(), "n1".parse().unwrap())).collect();
        let ports = [(slots[0].clone(), 20_001)].into();
        let address = |_: &NodeName| "h".to_owned();
        let placed = Placed { ports: &ports, ..placed(&id, &job, &places, &address) };
        let checks = slots.map(|slot| {
            let create = Create { slot, node: "n1".parse().unwrap(), version: 0, attempt: 0 };
            let pod = create.slot.pod_id(&id, PodIdFormat::Plain).unwrap();
            let text = placed.manifest(&create, &pod, &placed.peers());
            let manifest: Value = serde_json::from_str(&text).unwrap();
            manifest["launchables"]["c"]["health"]["tcp"].as_str().unwrap().to_owned()
        });
        assert_eq!(checks, ["127.0.0.1:20001", "127.0.0.1:23456"]);
    }
}
