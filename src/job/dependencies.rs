//! Jobs that wait for others, by the annotation `rcfarm/depends-on`. Pure, but for [`read_unmet`].
//!
//! A job that waits has its record alone: no status, no PodGroup. What others have become is read before the first
//! status is written. After that the annotation has no effect. The job is looked at again when the status of a PodGroup
//! of one that it waits for changes or is deleted, which is the last that happens to a job that ends.

use std::fmt;

use serde_json::Value;

use super::owner;
use rcfarm_api::FieldError;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_store::{Reader, StoreError};

/// The annotation, as in `afterok:a,b;afterany:c`.
pub const ANNOTATION: &str = "rcfarm/depends-on";
/// Path of the annotation in a document.
pub const FIELD: &str = "metadata.annotations.rcfarm/depends-on";
/// Jobs that one job waits for.
const MOST_TARGETS: usize = 64;

/// When something may run, given what it depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DependencyType {
    /// All have completed.
    #[default]
    AfterOk,
    /// All have ended, or were skipped.
    AfterAny,
    /// All have failed.
    AfterNotOk,
}

impl DependencyType {
    /// The types by their words.
    pub const WORDS: [(&'static str, DependencyType); 3] = [
        ("afterok", DependencyType::AfterOk),
        ("afterany", DependencyType::AfterAny),
        ("afternotok", DependencyType::AfterNotOk),
    ];
}

impl fmt::Display for DependencyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = DependencyType::WORDS.iter().find(|(_, kind)| kind == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// Another job that a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDependency {
    pub kind: DependencyType,
    /// Its name, in the namespace of the job that waits.
    pub target: ObjectName,
}

/// What another job has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetState {
    /// There is no record of the name.
    Missing,
    /// It has not ended.
    Active,
    /// It has ended.
    Ended(JobPhase),
}

/// The jobs that a document waits for.
///
/// # Errors
/// What is wrong with the annotation.
pub fn in_document(id: &Namespaced, document: &Value) -> Result<Vec<JobDependency>, FieldError> {
    let all = annotated(document)?;
    match all.iter().any(|one| one.target == id.name) {
        true => Err(wrong(format!("the job waits for itself: {0} -> {0}", id.name))),
        false => Ok(all),
    }
}

fn wrong(why: String) -> FieldError {
    FieldError::new(FIELD, why, "write it like afterok:a,b;afterany:c")
}

/// The jobs of the annotation of a document whose jobs have other names, as a template.
///
/// # Errors
/// What is wrong with the annotation.
pub fn annotated(document: &Value) -> Result<Vec<JobDependency>, FieldError> {
    let annotations = document.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(text) = annotations.and_then(|all| all.get(ANNOTATION)) else { return Ok(Vec::new()) };
    let text = text.as_str().ok_or_else(|| wrong("it must be a text".to_owned()))?;
    let mut all: Vec<JobDependency> = Vec::new();
    for part in text.split(';') {
        let (word, names) =
            part.split_once(':').ok_or_else(|| wrong(format!("{part:?} names no job")))?;
        let kind = DependencyType::WORDS.iter().find(|(known, _)| *known == word.trim());
        let Some((_, kind)) = kind else {
            let why = format!("{word:?} is none of afterok, afterany, afternotok");
            return Err(wrong(why));
        };
        for name in names.split(',') {
            let target: ObjectName =
                name.trim().parse().map_err(|error| wrong(format!("{name:?}: {error}")))?;
            if all.iter().any(|other| other.target == target) {
                return Err(wrong(format!("{target} is there twice")));
            }
            all.push(JobDependency { kind: *kind, target });
        }
    }
    if all.len() > MOST_TARGETS {
        return Err(wrong(format!("{} jobs are too many: at most {MOST_TARGETS}", all.len())));
    }
    Ok(all)
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    pub why: String,
    /// It cannot be met unless the other job is made again.
    pub is_final: bool,
}

impl JobDependency {
    /// Why the job must wait, given what the other one has become. `None`: it need not.
    #[must_use]
    pub fn unmet(&self, state: TargetState) -> Option<Unmet> {
        let JobDependency { kind, target } = self;
        let unmet = |why: String, is_final| Some(Unmet { why, is_final });
        match (state, kind) {
            (TargetState::Missing, _) => unmet(format!("{kind}: there is no job {target}"), false),
            (TargetState::Active, _) => unmet(format!("{kind}: {target} has not ended"), false),
            (TargetState::Ended(_), DependencyType::AfterAny)
            | (TargetState::Ended(JobPhase::Completed), DependencyType::AfterOk) => None,
            (TargetState::Ended(phase), DependencyType::AfterNotOk)
                if phase != JobPhase::Completed =>
            {
                None
            }
            (TargetState::Ended(phase), _) => {
                unmet(format!("{kind}: {target} is {phase}, so it never starts"), true)
            }
        }
    }

    /// The other job.
    #[must_use]
    pub fn job(&self, id: &Namespaced) -> Namespaced {
        Namespaced { namespace: id.namespace.clone(), name: self.target.clone() }
    }
}

/// Reads what a job still waits for.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read_unmet(
    reader: &dyn Reader,
    id: &Namespaced,
    dependencies: &[JobDependency],
) -> Result<Vec<Unmet>, StoreError> {
    let mut unmet = Vec::new();
    for dependency in dependencies {
        let state = match owner::read_job(reader, &dependency.job(id)).await? {
            None => TargetState::Missing,
            Some(job) => match job.phase() {
                Some((phase, _)) if phase.is_final() => TargetState::Ended(phase),
                _ => TargetState::Active,
            },
        };
        unmet.extend(dependency.unmet(state));
    }
    Ok(unmet)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<JobDependency>, FieldError> {
        let document = json!({"metadata": {"annotations": {ANNOTATION: text}}});
        in_document(&"team/own".parse().unwrap(), &document)
    }

    #[test]
    fn annotation_is_read_and_its_problems_are_named() {
        let all = read("afterok:a, b;afterany:c").unwrap();
        let named: Vec<String> =
            all.iter().map(|one| format!("{} {}", one.kind, one.target)).collect();
        assert_eq!(named, ["afterok a", "afterok b", "afterany c"]);
        assert_eq!(in_document(&"team/own".parse().unwrap(), &json!({})), Ok(Vec::new()));
        let many: Vec<String> = (0..65).map(|n| format!("j{n}")).collect();
        for (text, words) in [
            ("a", "names no job"),
            ("after:a", "is none of"),
            ("afterok:", "\"\""),
            ("afterok:own", "waits for itself"),
            ("afterok:a;afterany:a", "twice"),
            (&format!("afterok:{}", many.join(",")), "too many"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.path == FIELD && error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn ends_of_others_let_a_job_start_or_keep_it_for_ever() {
        use JobPhase::{Completed, Failed, Terminated};
        for (word, starts, never) in [
            ("afterok", &[Completed][..], &[Failed, Terminated][..]),
            ("afterany", &[Completed, Failed, Terminated], &[]),
            ("afternotok", &[Failed, Terminated], &[Completed]),
        ] {
            let one = read(&format!("{word}:a")).unwrap().remove(0);
            for phase in starts {
                assert_eq!(one.unmet(TargetState::Ended(*phase)), None, "{word} {phase}");
            }
            for phase in never {
                assert!(one.unmet(TargetState::Ended(*phase)).unwrap().is_final, "{word} {phase}");
            }
            for state in [TargetState::Missing, TargetState::Active] {
                assert!(!one.unmet(state).unwrap().is_final, "{word} {state:?}");
            }
        }
    }
}
