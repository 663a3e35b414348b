//! Pods of p2 that are known by a UUID (`p2.md` §1).

use serde::Deserialize;
use uuid::Uuid;

use crate::ids::PodId;

/// Value of `intent/<node>/<uuid>` and `reality/<node>/<uuid>`.
#[derive(Deserialize)]
struct PodIndex {
    pod_key: Uuid,
}

/// Whether an intent or reality is not a manifest, but p2's reference to `pods/<uuid>`. Only p2's preparer runs such a
/// pod. A UUID is also a valid pod id; the value of its key is then a manifest.
#[must_use]
pub fn is_uuid_pod(pod: &PodId, value: &[u8]) -> bool {
    let named = pod.as_str().parse::<Uuid>();
    let index = serde_json::from_slice::<PodIndex>(value);
    matches!((named, index), (Ok(named), Ok(index)) if index.pod_key == named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_pod_has_its_own_uuid_as_key_and_value() {
        let id = "6f9b4f4e-52a6-4f3c-9d57-0c3e8a1b2c3d";
        let index = format!("{{\"pod_key\":\"{id}\"}}");
        for (pod, value, is) in [
            (id, index.as_str(), true),
            (id, "id: 6f9b4f4e-52a6-4f3c-9d57-0c3e8a1b2c3d\n", false),
            (id, "{\"pod_key\":\"00000000-52a6-4f3c-9d57-0c3e8a1b2c3d\"}", false),
            ("web", index.as_str(), false),
            (id, "", false),
        ] {
            assert_eq!(is_uuid_pod(&pod.parse().unwrap(), value.as_bytes()), is, "{pod} {value}");
        }
    }
}
