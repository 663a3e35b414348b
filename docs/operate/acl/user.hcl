# What a person or script needs that creates, scales, labels and deletes. With --root ROOT, put ROOT/ in front of
# every key_prefix.

# Everything can be read: viewer.hcl has the list tree by tree.
key_prefix "" { policy = "read" }

# Records and labels, the audit record of each change, and the doorbell that wakes the farm.
key_prefix "replication_controllers/"       { policy = "write" }
key_prefix "labels/replication_controller/" { policy = "write" }
key_prefix "labels/node/"                   { policy = "write" }
key_prefix "audit_logs/"                    { policy = "write" }
key_prefix "rcfarm/bell/"                   { policy = "write" }

# `rc delete` takes the record's status with it.
key_prefix "status/replication_controllers/" { policy = "write" }

# To make and change queues, add:
#   key_prefix "rcfarm/queues/" { policy = "write" }

# Jobs, and commands to them. A team with a namespace of its own: key_prefix "rcfarm/jobs/team-a/".
key_prefix "rcfarm/jobs/"     { policy = "write" }
key_prefix "labels/job/"      { policy = "write" }
key_prefix "rcfarm/commands/" { policy = "write" }

# To empty nodes by hand, add:
#   key_prefix "rcfarm/nodes/" { policy = "write" }
# To remove orphaned pods and allocations, and to change labels of pods, add:
#   key_prefix "labels/pod/"         { policy = "write" }
#   key_prefix "intent/"             { policy = "write" }
#   key_prefix "rcfarm/allocations/" { policy = "write" }
