# What a person or script needs that creates, scales, labels and deletes replication controllers. For jobs, team.hcl.
# With --root ROOT, put ROOT/ in front of every key_prefix.

# Records and labels, the audit record of each change, and the doorbell that wakes the farm.
key_prefix "replication_controllers/"       { policy = "write" }
key_prefix "labels/replication_controller/" { policy = "write" }
key_prefix "labels/node/"                   { policy = "write" }
key_prefix "audit_logs/"                    { policy = "write" }
key_prefix "rcfarm/bell/rc/"                { policy = "write" }
key_prefix "rcfarm/bell/confirm/"           { policy = "write" }

# `rc delete` takes the record's status with it.
key_prefix "status/replication_controllers/" { policy = "write" }

# Pods, nodes and farms.
key_prefix "labels/pod/"                   { policy = "read" }
key_prefix "health/"                       { policy = "read" }
key_prefix "status/pods/"                  { policy = "read" }
key_prefix "lock/replication_controllers/" { policy = "read" }
key_prefix "rcfarm/farms/"                 { policy = "read" }
key_prefix "rcfarm/nodes/"                 { policy = "read" }
key_prefix "rcfarm/allocations/"           { policy = "read" }
key        "rcfarm/layout"                 { policy = "read" }

# To make and change queues, their schedulers, priority classes, job types and cells, add:
#   key_prefix "rcfarm/cells/"            { policy = "write" }
#   key_prefix "rcfarm/queues/"           { policy = "write" }
#   key_prefix "rcfarm/schedulers/"       { policy = "write" }
#   key_prefix "rcfarm/priority_classes/" { policy = "write" }
#   key_prefix "rcfarm/job_types/"        { policy = "write" }
# To open and close them, and to command the jobs of every namespace, add:
#   key_prefix "rcfarm/commands/" { policy = "write" }

# Manifests below intent/ and reality/ are those of every team, with their environment. Without them `rc pods` and
# `rc plan` say that intents cannot be read, and `node list` counts no pods. To see them, add:
#   key_prefix "intent/"  { policy = "read" }
#   key_prefix "reality/" { policy = "read" }

# To empty nodes by hand, add:
#   key_prefix "rcfarm/nodes/" { policy = "write" }
# To remove orphaned pods and allocations, and to change labels of pods, add:
#   key_prefix "labels/pod/"         { policy = "write" }
#   key_prefix "intent/"             { policy = "write" }
#   key_prefix "rcfarm/allocations/" { policy = "write" }
