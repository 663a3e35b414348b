//! What a node has allocated to pods, compared with what it has (14). `replication.rs` and `gang.rs` call it.

use std::collections::BTreeSet;

use rcfarm_api::ResourceList;
use rcfarm_api::allocation::{Allocation, Allocations};

/// What is allocated beyond the capacity, a port that two pods have, or a device that two pods have or
/// that the node lacks; `None`: nothing.
#[must_use]
pub fn overcommitted(allocations: &Allocations, capacity: &ResourceList) -> Option<String> {
    let requests: Vec<ResourceList> =
        allocations.pods.values().map(Allocation::resources).collect();
    let total = ResourceList::sum(&requests);
    if let Some((name, sum)) = total.iter().find(|(name, sum)| *sum > capacity.amount(name)) {
        let spell = |amount| ResourceList::spell(name, amount);
        return Some(format!("{} of {} {name}", spell(sum), spell(capacity.amount(name))));
    }
    let mut ports = BTreeSet::new();
    let mut numbers = allocations.pods.values().flat_map(Allocation::port_numbers);
    if let Some(port) = numbers.find(|port| !ports.insert(*port)) {
        return Some(format!("port {port} twice"));
    }
    let mut given = BTreeSet::new();
    let devices = allocations.pods.values().flat_map(|pod| &pod.devices);
    let mut numbers = devices.flat_map(|(kind, numbers)| numbers.iter().map(move |n| (kind, *n)));
    numbers.find_map(|(kind, number)| match given.insert((kind, number)) {
        false => Some(format!("{kind} {number} twice")),
        true if u64::from(number) >= capacity.amount(kind) => {
            Some(format!("{kind} {number}, which it does not have"))
        }
        true => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::Stored;

    fn found(pods: &str) -> Option<String> {
        let record = format!(r#"{{"pods":{{{pods}}}}}"#);
        let allocations = Allocations::decode(record.as_bytes()).unwrap();
        overcommitted(&allocations, &"cpu=2,memory=1Gi,gpu=2".parse().unwrap())
    }

    #[test]
    fn overcommitted_notices_resources_devices_and_ports() {
        let fits = r#""a":{"cpu_milli":2000,"memory_bytes":1073741824,"devices":{"gpu":[0]}},
            "b":{"devices":{"gpu":[1]},"port":80,"ports":{"http":81}},"c":{"ports":{"http":82}}"#;
        assert_eq!(found(fits), None);
        for (pods, what) in [
            (r#""a":{"cpu_milli":1500},"b":{"cpu_milli":501}"#, "2001m of 2 cpu"),
            (r#""a":{"memory_bytes":1073741825}"#, "of 1Gi memory"),
            (r#""a":{"devices":{"gpu":[0]}},"b":{"devices":{"gpu":[0]}}"#, "gpu 0 twice"),
            (r#""a":{"devices":{"gpu":[2]}}"#, "gpu 2, which it does not have"),
            (r#""a":{"devices":{"fpga":[0]}}"#, "1 of 0 fpga"),
            (r#""a":{"ports":{"x":80}},"b":{"ports":{"y":80}}"#, "port 80 twice"),
            (r#""a":{"ports":{"x":80}},"b":{"port":80}"#, "port 80 twice"),
            (r#""a":{"ports":{"x":80,"y":80}}"#, "port 80 twice"),
        ] {
            assert!(found(pods).is_some_and(|found| found.contains(what)), "{what}");
        }
    }
}
