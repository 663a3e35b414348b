//! Decides which pods a job adopts or releases: the claim table of `kubeflow.md` §1.12. Pure.
//!
//! A pod's labels name job and member (the selector) and the job's uid (the owner reference). Changes are a CAS of the
//! labels in a transaction that checks the job's record: a deleted job adopts nothing, and a concurrent change wins.

/// Owner according to the uid label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// This job.
    Mine,
    /// Another job.
    Other,
    /// No uid label.
    Nobody,
}

/// Action for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionVerdict {
    /// It is a member already.
    Member,
    /// Add the job's uid to its labels.
    Adopt,
    /// Remove the job's uid from its labels.
    Release,
    /// Leave it unchanged.
    Ignore,
}

/// `matches`: labels and pod name are those of a member of this job. `owner_deleting`: the job is being deleted.
/// `pod_deleting`: the pod has no intent.
#[must_use]
pub fn verdict(
    reference: Reference,
    matches: bool,
    owner_deleting: bool,
    pod_deleting: bool,
) -> AdoptionVerdict {
    match (reference, matches) {
        (Reference::Mine, true) => AdoptionVerdict::Member,
        (Reference::Mine, false) if !owner_deleting => AdoptionVerdict::Release,
        (Reference::Nobody, true) if !owner_deleting && !pod_deleting => AdoptionVerdict::Adopt,
        _ => AdoptionVerdict::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AdoptionVerdict as V;
    use Reference as R;

    /// The lines of the table in `kubeflow.md` §1.12; `None`: both values.
    #[test]
    fn the_claim_table() {
        let any = None;
        for (line, (reference, matches, owner_deleting, pod_deleting), wanted) in [
            (1, (R::Other, any, any, any), V::Ignore),
            (2, (R::Mine, Some(true), any, any), V::Member),
            (3, (R::Mine, Some(false), Some(false), any), V::Release),
            (4, (R::Mine, Some(false), Some(true), any), V::Ignore),
            (5, (R::Nobody, Some(true), Some(false), Some(false)), V::Adopt),
            (6, (R::Nobody, Some(true), Some(true), any), V::Ignore),
            (7, (R::Nobody, Some(true), Some(false), Some(true)), V::Ignore),
            (8, (R::Nobody, Some(false), any, any), V::Ignore),
        ] {
            let each = |cell: Option<bool>| cell.map_or(vec![false, true], |cell| vec![cell]);
            for matches in each(matches) {
                for owner in each(owner_deleting) {
                    for pod in each(pod_deleting) {
                        assert_eq!(verdict(reference, matches, owner, pod), wanted, "line {line}");
                    }
                }
            }
        }
    }
}
