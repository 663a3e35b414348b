//! `resource_limits`: what the node enforces. p2's field, in p2's units (`p2.md` §1.12). Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{LimitsStanza, plain};
use crate::FieldError;
use crate::resource_list::{CPU, MEMORY, ResourceList};

/// Field of ours beside p2's `cpus`: the processor in thousandths. p2 passes over it and reads whole `cpus`.
const CPU_MILLI: &str = "cpu_milli";

impl LimitsStanza {
    /// The stanza for these limits; a resource of which there is 0 is not limited. p2 can read it: `cpus` is rounded up
    /// to whole processors, and our agents read `cpu_milli` instead.
    #[must_use]
    pub fn of(limits: &ResourceList) -> LimitsStanza {
        let mut cgroup = BTreeMap::new();
        let (cpu, memory) = (limits.amount(CPU), limits.amount(MEMORY));
        if cpu > 0 {
            cgroup.insert("cpus".to_owned(), json!(cpu.div_ceil(1000)));
        }
        if !cpu.is_multiple_of(1000) {
            cgroup.insert(CPU_MILLI.to_owned(), json!(cpu));
        }
        if memory > 0 {
            cgroup.insert(MEMORY.to_owned(), json!(memory));
        }
        LimitsStanza { cgroup }
    }

    /// The limits: `cpu` and `memory`. Amounts that p2 cannot read may be written as in `resources`. Other names are
    /// ignored.
    ///
    /// # Errors
    /// [`FieldError`] with the path below the manifest.
    pub fn amounts(&self) -> Result<ResourceList, FieldError> {
        let mut found = ResourceList::default();
        let at = |word: &str, error: FieldError| FieldError {
            path: format!("resource_limits.cgroup.{word}"),
            ..error
        };
        if let Some(cpus) = self.cgroup.get("cpus") {
            found.set(CPU, &plain(cpus)).map_err(|error| at("cpus", error))?;
        }
        if let Some(millis) = self.cgroup.get(CPU_MILLI) {
            let amount = millis.as_u64().ok_or_else(|| {
                let problem = format!("{millis} is no number of thousandths");
                at(CPU_MILLI, FieldError::new(CPU_MILLI, problem, "write a whole number"))
            })?;
            found = found.with(CPU, amount);
        }
        if let Some(memory) = self.cgroup.get(MEMORY) {
            let text = plain(memory);
            match p2_bytes(&text) {
                Some(bytes) => found = found.with(MEMORY, bytes),
                None => found.set(MEMORY, &text).map_err(|error| at(MEMORY, error))?,
            }
        }
        Ok(found)
    }
}

/// Bytes as p2 reads them: a decimal number, blanks, and K, M, G or T in either case, with or without B, all binary.
/// `None`: p2 refuses it, or it is negative.
#[must_use]
pub fn p2_bytes(text: &str) -> Option<u64> {
    // Go's `\s`, which is ASCII alone.
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}');
    let text = text.trim_matches(is_blank);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start_matches(is_blank).to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * (1_u64 << shift) as f64;
    // p2 counts in floating point and cuts off what is below a byte.
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Fields of a manifest that p2 knows.
const P2_FIELDS: [&str; 8] = [
    "status_port",
    "status_http",
    "status",
    "readonly",
    "artifact_registry",
    "node_requirements",
    "min_health_percentage",
    "termination_grace_period",
];

/// Fields of a manifest that our agents or farms know.
const OWN_FIELDS: [&str; 8] = [
    "id",
    "job",
    "launchables",
    "config",
    "run_as",
    "resources",
    "resource_limits",
    "single_instance",
];

/// Refuses fields that neither p2's programs nor ours know, and launchables that nobody can run: most likely they are
/// typing errors. For new manifests alone; farms and agents take what is there.
///
/// # Errors
/// [`FieldError`] of the first such field.
pub fn check_known(fields: &Value) -> Result<(), FieldError> {
    let known = |name: &str| OWN_FIELDS.contains(&name) || P2_FIELDS.contains(&name);
    if let Some(name) = keys(fields).find(|name| !known(name)) {
        let fix = format!("known are {}, and p2's fields", OWN_FIELDS.join(", "));
        return Err(FieldError::new(name, "no program knows this field of a manifest", fix));
    }
    let launchables = fields.get("launchables").unwrap_or(&Value::Null);
    for name in keys(launchables) {
        let kind = launchables[name].get("launchable_type").and_then(Value::as_str);
        let path = format!("launchables.{name}");
        match (kind, super::LaunchableStanza::from(launchables[name].clone())) {
            (Some("hoist" | "docker" | "opencontainer"), _)
            | (_, super::LaunchableStanza::Process(_)) => {}
            (_, super::LaunchableStanza::Unfit(_, why)) => {
                return Err(FieldError::new(path, why, "compare with docs/guide/nodes.md"));
            }
        }
    }
    Ok(())
}

fn keys(value: &Value) -> impl Iterator<Item = &str> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.as_str())
}

/// What keeps p2's programs from reading a manifest. One record that p2 cannot read stops all of its farms.
///
/// # Errors
/// [`FieldError`] of the first such field.
pub fn check_for_p2(fields: &Value) -> Result<(), FieldError> {
    let bad = |path: &str, problem: &str, fix: &str| Err(FieldError::new(path, problem, fix));
    let cgroup = |path: &str, cgroup: &Value| {
        let at = |word: &str| format!("{path}.{word}");
        if cgroup.get("cpus").is_some_and(|cpus| !cpus.is_number() && !cpus.is_null()) {
            return bad(&at("cpus"), "p2 reads whole numbers", "write 2");
        }
        let memory = cgroup.get(MEMORY).filter(|memory| !memory.is_null()).map(plain);
        if memory.is_some_and(|text| p2_bytes(&text).is_none()) {
            return bad(&at(MEMORY), "p2 reads bytes, or K, M, G, T, which are binary", "write 1G");
        }
        Ok(())
    };
    if fields.get("config").is_some_and(|config| !config.is_object() && !config.is_null()) {
        return bad("config", "p2 reads a mapping", "");
    }
    for name in ["status_port", "min_health_percentage", "termination_grace_period"] {
        if fields.get(name).is_some_and(|number| !number.is_number() && !number.is_null()) {
            return bad(name, "p2 reads a number", "write it without quotes");
        }
    }
    if let Some(limits) = fields.pointer("/resource_limits/cgroup") {
        cgroup("resource_limits.cgroup", limits)?;
    }
    let launchables = fields.get("launchables").unwrap_or(&Value::Null);
    for name in keys(launchables) {
        let (stanza, path) = (&launchables[name], format!("launchables.{name}"));
        let given = |pointer| {
            let text = stanza.pointer(pointer).filter(|value| !value.is_null()).map(plain);
            text.is_some_and(|text| !text.is_empty())
        };
        if let Some(limits) = stanza.get("cgroup") {
            cgroup(&format!("{path}.cgroup"), limits)?;
        }
        let is_plain = |value: &Value| !value.is_object() && !value.is_array();
        let env = stanza.get("env").filter(|env| !env.is_null());
        let plain_env = |env: &Value| env.as_object().is_some_and(|env| env.values().all(is_plain));
        if env.is_some_and(|env| !plain_env(env)) {
            return bad(&format!("{path}.env"), "p2 reads texts by name", "");
        }
        match stanza.get("launchable_type").and_then(Value::as_str).unwrap_or_default() {
            "" => return bad(&path, "p2 needs a launchable_type", ""),
            "hoist" | "opencontainer" if given("/location") == given("/version/id") => {
                return bad(&path, "p2 needs either location or version", "");
            }
            "docker" if !given("/image/name") || !given("/image/sha256") => {
                return bad(&path, "p2 needs an image with name and sha256", "");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Manifest, PodManifest};

    fn fields(text: &str) -> Value {
        Manifest::parse(text).unwrap().fields().unwrap()
    }

    fn amounts(text: &str) -> Result<ResourceList, FieldError> {
        let text = format!("id: a\nresource_limits: {{cgroup: {text}}}\n");
        PodManifest::read(&Manifest::parse(&text).unwrap())?.resource_limits.unwrap().amounts()
    }

    /// p2's own table (`pkg/util/size`), and more.
    #[test]
    fn p2_sizes_are_binary_and_read_as_p2_reads_them() {
        const M: u64 = 1 << 20;
        for (text, bytes) in [
            ("1", Some(1)),
            ("10", Some(10)),
            ("80B", Some(80)),
            ("0.001K", Some(1)),
            ("10G", Some(10 << 30)),
            ("100.5 MB", Some(201 * M / 2)),
            ("80T", Some(80 << 40)),
            ("512M", Some(512 * M)),
            ("512m", Some(512 * M)),
            ("512MB", Some(512 * M)),
            ("1.5G", Some(1536 * M)),
            ("1g", Some(1 << 30)),
            (" 10 MB ", Some(10 * M)),
            ("4GB", Some(4 << 30)),
            ("zilch", None),
            ("1000BB", None),
            ("1.0.0.0K", None),
            ("1Gi", None),
            ("1GiB", None),
            ("-1", None),
            (".", None),
            ("", None),
        ] {
            assert_eq!(p2_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn limits_in_either_spelling() {
        for (text, limits) in [
            ("{cpus: 2, memory: 512M}", "cpu=2,memory=512Mi"),
            ("{cpus: 2, memory: 1.5G}", "cpu=2,memory=1536Mi"),
            ("{cpus: 0.5, memory: 1Gi}", "cpu=500m,memory=1Gi"),
            ("{cpus: 1500m}", "cpu=1500m"),
            ("{cpus: 1, cpu_milli: 250, memory: 10 MB}", "cpu=250m,memory=10Mi"),
            ("{}", ""),
        ] {
            assert_eq!(amounts(text).unwrap().to_string(), limits, "{text}");
        }
        for (text, path) in
            [("{cpus: x}", "cpus"), ("{memory: 1X}", "memory"), ("{cpu_milli: a}", "cpu_milli")]
        {
            let error = amounts(text).unwrap_err();
            assert_eq!(error.path, format!("resource_limits.cgroup.{path}"), "{text}");
        }
    }

    #[test]
    fn what_is_written_p2_reads_and_our_agents_read_exactly() {
        for limits in ["cpu=250m,memory=1Gi", "cpu=2", "memory=1000", "cpu=2500m"] {
            let limits: ResourceList = limits.parse().unwrap();
            let stanza = LimitsStanza::of(&limits);
            assert_eq!(stanza.amounts().unwrap(), limits);
            assert!(stanza.cgroup.values().all(Value::is_u64), "{stanza:?}");
            check_for_p2(&json!({"id": "a", "resource_limits": stanza})).unwrap();
        }
    }

    /// What p2's decoder was seen to refuse.
    #[test]
    fn what_p2_cannot_read_is_named() {
        for (text, path) in [
            ("resource_limits: {cgroup: {memory: 1Gi}}", "resource_limits.cgroup.memory"),
            ("resource_limits: {cgroup: {memory: 512Mi}}", "resource_limits.cgroup.memory"),
            ("resource_limits: {cgroup: {cpus: 500m}}", "resource_limits.cgroup.cpus"),
            ("config: [a]", "config"),
            ("config: text", "config"),
            ("status_port: \"80\"", "status_port"),
            ("launchables: {a: {location: x}}", "launchables.a"),
            ("launchables: {a: {launchable_type: hoist}}", "launchables.a"),
            (
                "launchables: {a: {launchable_type: hoist, location: x, version: {id: b}}}",
                "launchables.a",
            ),
            ("launchables: {a: {launchable_type: docker}}", "launchables.a"),
        ] {
            let error = check_for_p2(&fields(&format!("id: a\n{text}\n"))).unwrap_err();
            assert_eq!(error.path, path, "{text}");
        }
        check_for_p2(&fields(
            "id: a\nconfig: {b: [1]}\nresource_limits: {cgroup: {cpus: 2, memory: 1G}}\nlaunchables:\n  \
             a: {launchable_type: hoist, location: x}\n  b: {launchable_type: process, command: x, env: {N: 1}}\n",
        ))
        .unwrap();
    }

    #[test]
    fn unknown_fields_are_refused() {
        for (text, path) in [
            ("lauchables: {}", "lauchables"),
            ("launchables: {a: {launchable_type: proces, command: x}}", "launchables.a"),
            ("launchables: {a: {launchable_type: process, comand: x}}", "launchables.a"),
            ("launchables: {a: {command: x}}", "launchables.a"),
        ] {
            let error = check_known(&fields(&format!("id: a\n{text}\n"))).unwrap_err();
            assert_eq!(error.path, path, "{text}");
        }
        check_known(&fields(
            "id: a\nstatus_port: 80\nlaunchables: {a: {launchable_type: hoist}}\n",
        ))
        .unwrap();
    }

    /// A new field of [`PodManifest`] belongs into the list.
    #[test]
    fn every_field_of_a_pod_is_known() {
        let all = PodManifest {
            id: "a".to_owned(),
            job: Some(json!({})),
            config: Some(json!({})),
            run_as: Some(json!("a")),
            resources: [("cpu".to_owned(), json!(1))].into(),
            resource_limits: Some(LimitsStanza::default()),
            single_instance: true,
            ..PodManifest::default()
        };
        check_known(&serde_json::to_value(all).unwrap()).unwrap();
    }
}
