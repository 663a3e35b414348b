//! Whose a pod is that carries a job's name: the reference's claim table (`kubeflow.md` §1.12). Pure.
//!
//! The selector is the labels that name the job and the member, the reference is the uid beside them. Whatever is decided
//! is carried out by CAS of the labels in a transaction that is guarded by the job's record, so that nobody adopts for
//! a job that is gone, and no pod is taken that changed hands meanwhile.

/// Whose uid a pod carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// This job's.
    Mine,
    /// Another job's.
    Other,
    /// Nobody's.
    Nobody,
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionVerdict {
    /// It is a member.
    Member,
    /// It becomes one.
    Adopt,
    /// It is one no more.
    Release,
    /// It is none of this job's business.
    Ignore,
}

/// Decides. `matches`: its labels name this job and its name is that of the member; `owner_deleting`: the job is being
/// deleted; `pod_deleting`: the pod is not intended any more.
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

    /// `kubeflow.md` §1.12, line by line; `None`: whichever.
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
