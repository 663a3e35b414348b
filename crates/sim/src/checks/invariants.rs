//! The table of invariants: number and statement. `docs/invariants.md` is generated from it; its numbers do not change.

#[derive(Debug)]
pub struct Invariant {
    /// Its number. Tests, messages and documents cite it.
    pub number: u32,
    /// What must hold.
    pub statement: &'static str,
    /// Files of the simulator that check it besides those of the table of checks.
    pub watched_in: &'static [&'static str],
    /// What is not checked yet, or what else the reader must know. May be empty.
    pub note: &'static str,
    /// Tests outside the simulator, in Markdown. May be empty.
    pub also: &'static str,
}

/// Invariants about the same thing.
#[derive(Debug)]
pub struct Group {
    /// What they are about.
    pub title: &'static str,
    pub invariants: &'static [Invariant],
}

/// The statement of an invariant. `None`: there is no such number.
#[must_use]
pub fn statement(number: u32) -> Option<&'static str> {
    let mut all = GROUPS.iter().flat_map(|group| group.invariants);
    all.find(|invariant| invariant.number == number).map(|invariant| invariant.statement)
}

/// All of them, in order.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Ownership",
        invariants: &[
            Invariant {
                number: 1,
                statement: "At any Consul index at most one session holds a record's lock. Every committed change by a controller was in a transaction whose fence names that holder.",
                watched_in: &[],
                note: "",
                also: "contract case pW08; `tests/it/faults/`",
            },
            Invariant {
                number: 2,
                statement: "No write is started after the local deadline of the session. After a pause longer than the TTL the first write is refused, not applied.",
                watched_in: &["checker.rs", "facts.rs"],
                note: "",
                also: "contract case pW06",
            },
            Invariant {
                number: 3,
                statement: "A farm never acts on a record outside its selector.",
                watched_in: &[],
                note: "",
                also: "`tests/it/farm/ownership.rs`",
            },
            Invariant {
                number: 4,
                statement: "Destroying a session leaves no lock and no half-written state behind.",
                watched_in: &[],
                note: "",
                also: "contract case L11",
            },
            Invariant {
                number: 5,
                statement: "Each safety layer holds alone: with the fence removed the deadline holds, with the deadline removed the fence holds.",
                watched_in: &[],
                note: "shown by the failpoints of 1 and 2",
                also: "",
            },
        ],
    },
    Group {
        title: "Replication",
        invariants: &[
            Invariant {
                number: 6,
                statement: "Pods labelled with an RC are at most desired + 1 per node transfer under way + the surge of a rolling update. At rest they equal desired.",
                watched_in: &[],
                note: "",
                also: "properties of `src/replication/plan`",
            },
            Invariant {
                number: 7,
                statement: "At most `max_per_node` (1) pods of an RC stand on a node. None is placed on a node that was ineligible at the decision's index.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 8,
                statement: "Intent, label and status of a pod change in one transaction: no intent without its label, and the reverse.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 9,
                statement: "An RC changes and removes only pods that carry its own id, checked in the transaction. Exception: it takes over a pod of a disabled RC with the same pod id and more pods than it wants; the old record is checked, too.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 10,
                statement: "A disabled RC causes no write. An RC with pods is not deleted unless forced.",
                watched_in: &[],
                note: "",
                also: "`tests/it/cli/rc.rs`",
            },
            Invariant {
                number: 11,
                statement: "Removal never takes healthy pods below the declared minimum. Order: ineligible, unhealthy, newest, name.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 12,
                statement: "One bad record, label or key harms only itself.",
                watched_in: &["world.rs", "version_skew.rs"],
                note: "",
                also: "`tests/it/admission.rs`",
            },
            Invariant {
                number: 13,
                statement: "Nothing is deleted because a read came back empty or short.",
                watched_in: &[],
                note: "",
                also: "`tests/it/farm/caches.rs`",
            },
            Invariant {
                number: 14,
                statement: "The resources allocated on a node never exceed what it has, and no device and no port is allocated twice.",
                watched_in: &["checks/allocations.rs"],
                note: "processors, and in worlds with cells devices; memory and ports: not yet",
                also: "`tests/it/farm/capacity.rs`, `tests/it/farm/ports.rs`, `tests/it/real_consul/controllers.rs`, properties of `src/placement/capacity`",
            },
        ],
    },
    Group {
        title: "Audit",
        invariants: &[Invariant {
            number: 15,
            statement: "Folding the audit log from empty gives the current state. Each transition has exactly one entry, at the same ModifyIndex. Entries are ordered, and an ambiguous write never yields two.",
            watched_in: &[],
            note: "",
            also: "properties of the audit fold; `tests/it/faults/`",
        }],
    },
    Group {
        title: "Jobs, gangs, queues",
        invariants: &[
            Invariant {
                number: 16,
                statement: "No member of a gang starts unless the whole gang was placed. No partial gang outlives its timeout at any crash point.",
                watched_in: &["liveness/jobs.rs"],
                note: "",
                also: "histories of `src/batch`; `tests/it/farm/queues.rs`",
            },
            Invariant {
                number: 17,
                statement: "Admitted requests of a queue stay within what it may use, own and borrowable; a parent's total within its capacity; lending limits hold, at every index.",
                watched_in: &[],
                note: "",
                also: "histories of `src/batch`",
            },
            Invariant {
                number: 18,
                statement: "Nothing lower is admitted while something higher that fits waits in the same FIFO scope.",
                watched_in: &[],
                note: "",
                also: "histories of `src/batch`",
            },
            Invariant {
                number: 19,
                statement: "Preemption ends, and freed capacity stays reserved for the preemptor. A group that is not evicted keeps its placement while it has pods.",
                watched_in: &[],
                note: "preemption is of cells: 41 to 46",
                also: "",
            },
            Invariant {
                number: 20,
                statement: "Restarting one pod never resets its gang. A job that is created again under a name shares nothing with the old one.",
                watched_in: &[],
                note: "",
                also: "`src/job` lives",
            },
            Invariant {
                number: 21,
                statement: "Only listed edges of a state machine are taken. Terminal phases are left only by an explicit restart. Exactly one of Succeeded and Failed is ever true; Running and Restarting are never both true.",
                watched_in: &[],
                note: "",
                also: "generated [state machines](reference/state-machines/README.md)",
            },
            Invariant {
                number: 22,
                statement: "Attempt counters live in the record, grow with the restart, survive failover and never exceed their limit. No infrastructure error terminates a user's job. A command is carried out once.",
                watched_in: &["liveness/jobs.rs"],
                note: "",
                also: "`tests/it/real_consul/jobs.rs`",
            },
            Invariant {
                number: 23,
                statement: "A dependent, a member or a whole job, starts only after its dependencies' condition held. Each flow step runs once per attempt. Cycles are refused on write.",
                watched_in: &[],
                note: "",
                also: "`tests/it/admission.rs` J26, `tests/it/farm/flow.rs`",
            },
            Invariant {
                number: 24,
                statement: "Timers (deadline, TTL, delayed policies, schedules) derive from persisted times and survive failover.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 25,
                statement: "TTL and garbage collection delete only finished records and their children, never a newer uid.",
                watched_in: &[],
                note: "",
                also: "",
            },
        ],
    },
    Group {
        title: "Cells",
        invariants: &[
            Invariant {
                number: 26,
                statement: "A cell is owned once. A virtual cluster that has a free cell of a level gets it without waiting for another's guaranteed work. Releasing everything restores the initial tree.",
                watched_in: &[],
                note: "41, 42 and 46 are its parts in a simulation; the tree: not yet",
                also: "`crates/cells/tests/it/histories.rs`, `tests/it/farm/cells.rs`",
            },
            Invariant {
                number: 41,
                statement: "At most one group has a device, and at most one reserves it. No group is placed on a device that another one reserves. The members of a bound group are allocated the devices of its record.",
                watched_in: &[],
                note: "",
                also: "`crates/cells/tests/it/histories.rs`",
            },
            Invariant {
                number: 42,
                statement: "Guaranteed groups of a virtual cluster hold no more than it was promised. Each virtual device is held once, and all of a virtual cell is in one physical cell of its type.",
                watched_in: &[],
                note: "groups that were placed under the present configuration",
                also: "`crates/cells/tests/it/histories.rs`",
            },
            Invariant {
                number: 43,
                statement: "While a group is bound its pods keep their nodes and devices, whatever becomes of nodes and configuration.",
                watched_in: &[],
                note: "",
                also: "",
            },
            Invariant {
                number: 44,
                statement: "An eviction names a group that reserves devices of the victim at that time. The victim is opportunistic, or has a lower priority in the same virtual cluster. A group that leaves a node holds cells there.",
                watched_in: &[],
                note: "",
                also: "`src/batch/plan/tests/preemption.rs`",
            },
            Invariant {
                number: 45,
                statement: "A preemption ends: the preemptor is placed or its reservation is gone, and nobody stays evicted.",
                watched_in: &["liveness/cells.rs"],
                note: "",
                also: "`tests/it/farm/preemption.rs`",
            },
            Invariant {
                number: 46,
                statement: "A guaranteed group within its quota is placed if its nodes are healthy, whatever is lent to others.",
                watched_in: &["liveness/cells.rs"],
                note: "",
                also: "`crates/cells/tests/it/histories.rs`",
            },
        ],
    },
    Group {
        title: "Liveness",
        invariants: &[
            Invariant {
                number: 27,
                statement: "Each enabled record reaches its desired state if enough nodes are eligible.",
                watched_in: &["liveness/services.rs", "liveness/jobs.rs"],
                note: "",
                also: "`tests/it/faults/`",
            },
            Invariant {
                number: 28,
                statement: "A dead farm's records are claimed and acted on within check TTL + 1 s, with a plain TTL session within 2 × TTL + 1 s, after SIGTERM within 1 s. No other write is needed to trigger it.",
                watched_in: &["world.rs"],
                note: "",
                also: "[benchmarks](operate/benchmarks.md)",
            },
            Invariant {
                number: 29,
                statement: "No loop retries without backoff. The idle request rate does not grow with the number of records. Memory stays flat.",
                watched_in: &["world.rs"],
                note: "memory: not yet",
                also: "[benchmarks](operate/benchmarks.md)",
            },
        ],
    },
    Group {
        title: "Bulkheads",
        invariants: &[
            Invariant {
                number: 30,
                statement: "What a record contains changes nothing for records that do not depend on it, beyond a stated delay. No value that a tenant can write stops a farm, an agent, a pass or another tenant's record.",
                watched_in: &["workload/hostile.rs", "workload/hostile_owners.rs", "world.rs"],
                note: "the delay: the limits of 27, which are 150 s after the faults have ended, and 1100 s for jobs",
                also: "`tests/it/admission.rs`, fuzz targets",
            },
            Invariant {
                number: 31,
                statement: "A removal or a move is decided on a view of pods and their nodes at least as new as the record and on health read at the decision, or the transaction checks what was counted.",
                watched_in: &[],
                note: "the labels of nodes; 6, 9, 11 and 13 cover other parts",
                also: "`tests/it/farm/removals.rs`",
            },
            Invariant {
                number: 32,
                statement: "An agent stops a process only on proof that its intent is gone, never because a store is empty, new, restored or out of reach. A pod's identity is unique across namespaces, and an agent touches no process of another owner.",
                watched_in: &[],
                note: "a pod's owner: not yet",
                also: "`tests/it/node/trust.rs`, `tests/it/node/owners.rs`",
            },
            Invariant {
                number: 33,
                statement: "A session's heartbeat does not wait for any work of the farm or the agent.",
                watched_in: &[],
                note: "not in a simulation, which has one thread",
                also: "`tests/it/farm/sessions.rs`",
            },
            Invariant {
                number: 34,
                statement: "What a pod may do, see and run as is what its manifest and the node's policy allow: no token of the agent, no other user, no other pod's files.",
                watched_in: &[],
                note: "not yet",
                also: "`tests/it/node/users.rs`",
            },
        ],
    },
    Group {
        title: "Nodes",
        invariants: &[
            Invariant {
                number: 35,
                statement: "A pod runs at most once on a node, also when its agent crashes and starts again.",
                watched_in: &["nodes/machine.rs"],
                note: "",
                also: "`tests/it/node/adoption.rs`",
            },
            Invariant {
                number: 36,
                statement: "A process whose intent is gone or was replaced ends within a stated bound.",
                watched_in: &["liveness/agents.rs"],
                note: "",
                also: "`tests/it/node/pods.rs`",
            },
            Invariant {
                number: 37,
                statement: "Reality and status of a pod tell what its processes did: nothing that did not happen, and in the end all of it.",
                watched_in: &["liveness/agents.rs"],
                note: "",
                also: "`tests/it/node/pods.rs`",
            },
        ],
    },
    Group {
        title: "Updates",
        invariants: &[Invariant {
            number: 38,
            statement: "An update in order restarts a healthy pod only while, beside it, at least the declared minimum of pods is healthy and runs what is intended for it. Without a declared minimum all others are.",
            watched_in: &["liveness/services.rs"],
            note: "",
            also: "`tests/it/farm/manifest_updates.rs`",
        }],
    },
    Group {
        title: "Flows",
        invariants: &[
            Invariant {
                number: 39,
                statement: "A scheduled time of a CronJob makes at most one job, not before it is due, and none while it is suspended or its `concurrencyPolicy` forbids it. What is due while nothing is at fault is made.",
                watched_in: &["liveness/flows.rs"],
                note: "",
                also: "`src/cron`, `tests/it/farm/cron.rs`",
            },
            Invariant {
                number: 40,
                statement: "A step of a flow gets one job for each attempt, also if the job is gone, and another attempt only after a failure. A flow that is over has the phase that its jobs imply.",
                watched_in: &["liveness/flows.rs"],
                note: "",
                also: "`src/flow`, `tests/it/farm/flow.rs`",
            },
            Invariant {
                number: 47,
                statement: "Of the tasks of an array at most as many run at once as its limit says, each on one member. A task is noted as completed after it has succeeded on a node; it stays noted, and does not start again.",
                watched_in: &[],
                note: "",
                also: "`src/job/scenarios/arrays.rs`, `tests/it/farm/jobs/arrays.rs`",
            },
            Invariant {
                number: 48,
                statement: "A token makes one job of a template, however often it is dispatched and whatever becomes of the template.",
                watched_in: &["liveness/flows.rs"],
                note: "",
                also: "`src/flow/dispatch.rs`, `tests/it/cli/dispatch.rs`",
            },
        ],
    },
];
