//! The job that a dispatch makes of a template, with its metadata and payload. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::parameters::{self, Dispatch, variable};
use super::template::{self, TemplateSpec};
use crate::job::document::{self, FieldIssues, MADE_BY_FLOW, PAYLOAD_ANNOTATION, Read};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{Slot, VOLCANO_JOB};
use rcfarm_api::manifest::content_hash;
use rcfarm_api::{FieldError, InvalidText};

/// Annotation of a job with the token of its dispatch.
pub const TOKEN_ANNOTATION: &str = "rcfarm/dispatch-token";
/// Annotation of a job with the metadata of its dispatch, as a JSON object.
pub const META_ANNOTATION: &str = "rcfarm/dispatch-meta";
/// Annotation of a job whose payload its dispatch has given: its number of bytes. Otherwise it is the template's.
const PAYLOAD_SIZE_ANNOTATION: &str = "rcfarm/dispatch-payload";
/// Limit of a pod's name, which begins with its job's.
const LONGEST_POD: usize = 63;
/// Characters of the template's name in that of a token's job. The name depends on template and token alone, so it does
/// not change with the template's tasks. 26 characters are left for the task and the index of a member.
const TOKEN_STEM: usize = 20;

/// A job that a dispatch makes.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchedJob {
    pub id: Namespaced,
    pub document: Value,
}

impl Dispatch {
    /// The job of a template. `unique`: distinguishes its name where there is no token.
    ///
    /// # Errors
    /// All that is wrong with the template, and with what is given.
    pub fn job(
        &self,
        template: &Namespaced,
        document: &Value,
        unique: u64,
    ) -> Result<DispatchedJob, Vec<FieldError>> {
        let TemplateSpec { parameters, .. } = template::check(template, document)?;
        let problems = parameters.check(self);
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut spec = document.get("spec").cloned().unwrap_or_default();
        parameters::take(&mut spec, &mut FieldIssues::default());
        set_variables(&mut spec, &self.meta);
        let metadata = self.metadata(template, document);
        let of = |id: &Namespaced| {
            let mut job = json!({"apiVersion": VOLCANO_JOB.0, "kind": VOLCANO_JOB.1,
                "metadata": metadata, "spec": spec});
            job["metadata"]["name"] = json!(id.name);
            job["metadata"]["namespace"] = json!(id.namespace);
            job
        };
        let Read { spec: read, .. } = document::read(template, &of(template))?;
        let last = |(name, replicas): (&str, u32)| Slot::new(name, replicas.saturating_sub(1));
        let tasks = read.tasks.iter().map(|task| last((&task.name, task.replicas)));
        let longest = tasks.map(|slot| slot.to_string().len() + 1).max().unwrap_or_default();
        let id = match self.token_job(template) {
            Some(id) => id?,
            None => {
                let suffix = format!("-{unique:016x}");
                named(template, LONGEST_POD.saturating_sub(suffix.len() + longest), &suffix)?
            }
        };
        let document = of(&id);
        document::read(&id, &document)?;
        Ok(DispatchedJob { id, document })
    }

    /// The job of a token: the same for the same template and token, whatever else is given, and whatever becomes of the
    /// template. `None`: there is no token.
    ///
    /// # Errors
    /// The template's name makes no name of a job.
    #[must_use]
    pub fn token_job(&self, template: &Namespaced) -> Option<Result<Namespaced, Vec<FieldError>>> {
        let token = self.token.as_ref()?;
        let hash = content_hash(format!("{} {token}", template.name).as_bytes());
        Some(named(template, TOKEN_STEM, &format!("-{hash:016x}")))
    }

    /// How the job of a token differs from the one that this dispatch would make; `None`: it is the same dispatch.
    #[must_use]
    pub fn difference(&self, template: &Namespaced, stored: &Value) -> Option<&'static str> {
        let own = self.annotations(template);
        let stored = stored.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let differs = |name: &str| stored.and_then(|all| all.get(name)) != own.get(name);
        let parts = [
            (MADE_BY_FLOW[1], "template"),
            (TOKEN_ANNOTATION, "token"),
            (META_ANNOTATION, "metadata"),
            (PAYLOAD_SIZE_ANNOTATION, "payload"),
        ];
        // Without one of its own it has the template's, which may be another by now.
        let payload = self.payload.is_some().then_some((PAYLOAD_ANNOTATION, "payload"));
        parts.into_iter().chain(payload).find(|(name, _)| differs(name)).map(|(_, what)| what)
    }

    /// Annotations that say of which dispatch a job is.
    fn annotations(&self, template: &Namespaced) -> Map<String, Value> {
        let mut all = Map::new();
        let mut set = |name: &str, text: String| drop(all.insert(name.to_owned(), json!(text)));
        set(MADE_BY_FLOW[1], format!("{}.{}", template.namespace, template.name));
        if let Some(token) = &self.token {
            set(TOKEN_ANNOTATION, token.clone());
        }
        if !self.meta.is_empty() {
            set(META_ANNOTATION, json!(self.meta).to_string());
        }
        if let Some(payload) = &self.payload {
            set(PAYLOAD_ANNOTATION, BASE64_STANDARD.encode(payload));
            set(PAYLOAD_SIZE_ANNOTATION, payload.len().to_string());
        }
        all
    }

    fn metadata(&self, template: &Namespaced, document: &Value) -> Value {
        let mut metadata = template::metadata(document);
        let own = self.annotations(template);
        metadata["labels"][MADE_BY_FLOW[1]] = own[MADE_BY_FLOW[1]].clone();
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            // A template that was written from a job may have them.
            for name in [TOKEN_ANNOTATION, META_ANNOTATION, PAYLOAD_SIZE_ANNOTATION] {
                annotations.remove(name);
            }
            annotations.extend(own);
        }
        metadata
    }
}

/// A job's name: the first `stem` characters of the template's, so that those of the pods are not too long, and a suffix.
fn named(template: &Namespaced, stem: usize, suffix: &str) -> Result<Namespaced, Vec<FieldError>> {
    let stem: String = template.name.as_str().chars().take(stem).collect();
    let name = format!("{}{suffix}", stem.trim_end_matches(['-', '.'])).parse();
    let name = name.map_err(|error: InvalidText| {
        let fix = "name the template otherwise";
        vec![FieldError::new("metadata.name", error.to_string(), fix)]
    })?;
    Ok(Namespaced { namespace: template.namespace.clone(), name })
}

/// Gives the metadata to each container, in place of its own variables of these names.
fn set_variables(spec: &mut Value, meta: &BTreeMap<String, String>) {
    if meta.is_empty() {
        return;
    }
    // `$` is written as `$$`: otherwise `$(NAME)` would be replaced.
    let given = meta.iter().map(|(key, value)| (variable(key), value.replace('$', "$$")));
    let given: Map<String, Value> = given.map(|(name, value)| (name, json!(value))).collect();
    let tasks = spec.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten();
    let containers = tasks.filter_map(|task| task.pointer_mut("/template/spec/containers"));
    for container in containers.filter_map(Value::as_array_mut).flatten() {
        let own = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_given = |one: &Value| {
            one.get("name").and_then(Value::as_str).is_some_and(|name| given.contains_key(name))
        };
        let others = own.into_iter().filter(|one| !is_given(one));
        // First, so that the container's own may refer to them.
        let first = given.iter().map(|(name, value)| json!({"name": name, "value": value}));
        container["env"] = first.chain(others).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::parameters::LARGEST_META;
    use crate::job::document::LARGEST_PAYLOAD;

    fn id() -> Namespaced {
        "team/resize".parse().unwrap()
    }

    fn template(parameterized: &str) -> Value {
        let text = format!(
            "
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {{name: resize, labels: {{team: x}}}}
spec:
  parameterized: {parameterized}
  tasks:
    - name: t
      replicas: 1
      template: {{spec: {{containers: [{{name: c, command: [sh, -c, 'echo $(RCFARM_META_INPUT)'], env: [
        {{name: FILE, value: $(RCFARM_META_INPUT)}}, {{name: RCFARM_META_SIZE, value: '10'}}]}}]}}}}
"
        );
        document::from_yaml(&text).unwrap()
    }

    fn dispatch(meta: &[(&str, &str)], payload: Option<&[u8]>, token: Option<&str>) -> Dispatch {
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let payload = payload.map(<[u8]>::to_vec);
        Dispatch { meta: meta.collect(), payload, token: token.map(str::to_owned) }
    }

    const DECLARED: &str = "{payload: optional, metaRequired: [input], metaOptional: [size]}";

    #[test]
    fn dispatch_gives_metadata_as_variables_and_the_payload() {
        let given = dispatch(&[("input", "a$(HOME)")], Some(b"hi"), Some("once"));
        let made = given.job(&id(), &template(DECLARED), 1).unwrap();
        let env = &made.document["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(
            *env,
            json!([{"name": "RCFARM_META_INPUT", "value": "a$$(HOME)"},
                {"name": "FILE", "value": "$(RCFARM_META_INPUT)"},
                {"name": "RCFARM_META_SIZE", "value": "10"}]),
        );
        let more = dispatch(&[("input", "a"), ("size", "7")], None, None);
        let more = more.job(&id(), &template(DECLARED), 1).unwrap().document;
        let env = &more["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(env[1], json!({"name": "RCFARM_META_SIZE", "value": "7"}));
        assert_eq!(env.as_array().unwrap().len(), 3);
        let read = document::read(&made.id, &made.document).unwrap();
        assert_eq!(read.spec.payload.as_deref(), Some("aGk="));
        let annotations = &made.document["metadata"]["annotations"];
        assert_eq!(annotations[META_ANNOTATION], r#"{"input":"a$(HOME)"}"#);
        assert_eq!(annotations["volcano.sh/createdByJobTemplate"], "team.resize");
        assert_eq!(made.document["metadata"]["labels"]["team"], "x");
        assert!(made.document["spec"].get("parameterized").is_none());
    }

    #[test]
    fn same_token_gives_the_same_name_and_another_dispatch_is_told_apart() {
        let of = |meta: &str, token: Option<&str>, unique| {
            let given = dispatch(&[("input", meta)], None, token);
            given.job(&id(), &template(DECLARED), unique).unwrap()
        };
        let first = of("a", Some("once"), 1);
        assert_eq!(first, of("a", Some("once"), 2));
        assert_eq!(first.id.name.as_str().len(), "resize-".len() + 16);
        assert_ne!(first.id, of("a", Some("twice"), 1).id);
        assert_eq!(of("a", None, 255).id.name.as_str(), "resize-00000000000000ff");
        let difference = |meta: &str, payload: Option<&[u8]>, stored: &Value| {
            dispatch(&[("input", meta)], payload, Some("once")).difference(&id(), stored)
        };
        assert_eq!(difference("a", None, &first.document), None);
        assert_eq!(of("b", Some("once"), 1).id, first.id);
        assert_eq!(difference("b", None, &first.document), Some("metadata"));
        assert_eq!(difference("a", Some(b"x"), &first.document), Some("payload"));
        assert_eq!(difference("a", None, &json!({})), Some("template"));
        let long: Namespaced = format!("team/{}", "a".repeat(55)).parse().unwrap();
        let mut document = template(DECLARED);
        document["metadata"] = json!({});
        let made = dispatch(&[("input", "a")], None, None).job(&long, &document, 1).unwrap();
        assert_eq!(made.id.name.as_str().len() + "-t-0".len(), 63);
    }

    #[test]
    fn edited_template_leaves_the_name_of_a_token() {
        let long: Namespaced = format!("team/{}", "a".repeat(37)).parse().unwrap();
        let of = |replicas: u32, task: &str| {
            let mut document = template("{payload: optional}");
            document["metadata"] = json!({"annotations": {PAYLOAD_ANNOTATION: "aGk="}});
            document["spec"]["tasks"][0]["replicas"] = json!(replicas);
            document["spec"]["tasks"][0]["name"] = json!(task);
            let given = dispatch(&[], None, Some("once"));
            let made = given.job(&long, &document, 1).unwrap();
            assert_eq!(given.token_job(&long).unwrap().unwrap(), made.id);
            let other = dispatch(&[], Some(b"hi"), Some("once"));
            assert_eq!(other.difference(&long, &made.document), Some("payload"));
            assert_eq!(given.difference(&long, &made.document), None);
            made.id
        };
        let first = of(9, "t");
        assert_eq!(first, of(11, "t"));
        assert_eq!(first, of(1000, "task-of-20-characters"));
        assert_eq!(first.name.as_str().len(), 37);
    }

    #[test]
    fn what_is_given_is_checked_by_key() {
        let problems = |declared: &str, given: Dispatch| -> Vec<String> {
            let found = given.job(&id(), &template(declared), 1).err().unwrap_or_default();
            found.into_iter().map(|error| format!("{}: {}", error.path, error.problem)).collect()
        };
        let none = dispatch(&[], None, None);
        assert_eq!(problems("null", none.clone()), [""; 0]);
        assert_eq!(problems(DECLARED, none.clone()), ["meta.input: the template requires it"]);
        let extra = dispatch(&[("input", "a"), ("colour", "b")], None, None);
        assert_eq!(problems(DECLARED, extra), ["meta.colour: the template does not know it"]);
        assert_eq!(problems("{payload: required}", none), ["payload: the template requires one"]);
        let payload = dispatch(&[], Some(b"x"), None);
        for declared in ["{payload: forbidden}", "null"] {
            assert_eq!(problems(declared, payload.clone()), ["payload: the template takes none"]);
        }
        let large = dispatch(&[], Some(&[0; LARGEST_PAYLOAD + 1]), None);
        assert_eq!(problems("{}", large), ["payload: it has 16385 bytes: at most 16384"]);
        let long = "x".repeat(LARGEST_META);
        let large = dispatch(&[("input", &long)], None, None);
        assert_eq!(problems(DECLARED, large), ["meta: it has 16389 bytes in all: at most 16384"]);
        let nul = dispatch(&[("input", "a\0")], None, None);
        assert_eq!(problems(DECLARED, nul), ["meta.input: a variable holds no NUL"]);
        assert_eq!(problems("null", dispatch(&[], None, Some(""))), ["token: it has 0 bytes"]);
    }

    #[test]
    fn problems_of_the_stanza_are_named_by_path() {
        let paths = |declared: &str| -> Vec<String> {
            let found = template::check(&id(), &template(declared)).err().unwrap_or_default();
            found.into_iter().map(|error| error.path).collect()
        };
        assert_eq!(paths(DECLARED), [""; 0]);
        assert_eq!(paths("{payload: never}"), ["spec.parameterized.payload"]);
        assert_eq!(paths("{meta: [a]}"), ["spec.parameterized.meta"]);
        assert_eq!(paths("{metaRequired: [1]}"), ["spec.parameterized.metaRequired[0]"]);
        assert_eq!(paths("{metaRequired: [a b]}"), ["spec.parameterized.metaRequired[0]"]);
        assert_eq!(
            paths("{metaRequired: [a-b], metaOptional: [A.B]}"),
            ["spec.parameterized.metaOptional[0]"]
        );
    }
}
