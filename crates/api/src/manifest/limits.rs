//! `resource_limits`: what the node enforces. p2's field, in p2's units (`p2.md` §1.12). Pure.

use std::collections::BTreeMap;

use serde_json::json;

use super::{LimitsStanza, plain};
use crate::FieldError;
use crate::resource_list::{CPU, MEMORY, ResourceList};

/// Field of ours beside p2's `cpus`: the processor in thousandths. p2 passes over it and reads whole `cpus`.
const CPU_MILLI: &str = "cpu_milli";
/// Greatest `cpu_milli`: a million processors. Quotas in microseconds stay far from the end of their range.
const MOST_CPU_MILLI: u64 = 1_000_000_000;

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
            let in_range = |amount: &u64| (1..=MOST_CPU_MILLI).contains(amount);
            let amount = millis.as_u64().filter(in_range).ok_or_else(|| {
                let problem =
                    format!("{millis} is no number of thousandths from 1 to {MOST_CPU_MILLI}");
                at(
                    CPU_MILLI,
                    FieldError::new(CPU_MILLI, problem, "write a whole number, or leave it out"),
                )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Manifest, PodManifest};

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
        for (text, path) in [
            ("{cpus: x}", "cpus"),
            ("{memory: 1X}", "memory"),
            ("{cpu_milli: a}", "cpu_milli"),
            ("{cpu_milli: 0}", "cpu_milli"),
            ("{cpu_milli: 1000000001}", "cpu_milli"),
            ("{cpu_milli: 18446744073709551615}", "cpu_milli"),
        ] {
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
            assert!(stanza.cgroup.values().all(serde_json::Value::is_u64), "{stanza:?}");
            let manifest = json!({"id": "a", "resource_limits": stanza});
            crate::manifest::check_for_p2(&manifest).unwrap();
        }
    }
}
