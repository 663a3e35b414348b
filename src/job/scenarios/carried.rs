//! Members whose nodes go down soon after they were given them.

use super::*;

/// The node of member `w-0` goes down, 20 s after the last one.
fn lose(life: &mut Scenario, n: u32) {
    let pod = life.pod("w", 0);
    (pod.lost, pod.on_down_node) = (true, true);
    pod.place.node = format!("lost-{n}").parse().unwrap();
    life.wait(20);
}

fn is_there(life: &Scenario) -> bool {
    life.slots().contains(&"w-0".to_owned())
}

#[test]
fn member_that_takes_three_nodes_down_is_set_aside() {
    let mut life = volcano(&[task("w", 2)], json!({"minAvailable": 1}));
    life.run();
    for n in 0..2 {
        lose(&mut life, n);
        assert!(is_there(&life), "{n}");
    }
    // The third node is given it 20 s after the second went down.
    lose(&mut life, 2);
    assert_eq!(life.slots(), ["w-1"]);
    let state = &life.status.state;
    assert_eq!((state.phase, state.reason.as_str()), (JobPhase::Running, "NodesLost"));
    assert!(state.message.contains("3 nodes in a row"), "{}", state.message);
    assert!(state.message.contains("lost-0, lost-1, lost-2"), "{}", state.message);
    life.wait(579);
    assert_eq!(life.slots(), ["w-1"]);
    life.wait(1);
    assert!(is_there(&life), "it is tried again");
    lose(&mut life, 3);
    life.wait(1_000);
    assert_eq!(life.slots(), ["w-1"], "longer each time");
    assert_eq!(life.status.retry_count, 0);
}

#[test]
fn node_that_goes_down_later_or_is_drained_takes_no_blame() {
    let mut life = volcano(&[task("w", 2)], json!({"minAvailable": 1}));
    life.run();
    for n in 0..6 {
        lose(&mut life, n);
        life.wait(300);
        life.run();
    }
    assert!(is_there(&life));
    for _ in 0..6 {
        life.pod("w", 0).lost = true;
        life.wait(20);
    }
    assert!(is_there(&life), "its nodes evict it");
}

#[test]
fn gang_waits_for_its_member_and_a_person_ends_that() {
    let more = json!({"minAvailable": 2, "maxRetry": 9, "policies": [
        {"event": "PodEvicted", "action": "RestartJob"},
    ]});
    let mut life = volcano(&[task("w", 2)], more);
    life.run();
    for n in 0..3 {
        assert_eq!(life.slots(), ["w-0", "w-1"]);
        lose(&mut life, n);
        // The pause after the restart.
        life.wait(60);
    }
    assert!(life.slots().is_empty(), "no part of a gang starts");
    assert_eq!(life.status.state.reason, "NodesLost");
    life.command(CommandAction::RestartJob, None, None);
    assert_eq!(life.slots(), ["w-0", "w-1"]);
}
