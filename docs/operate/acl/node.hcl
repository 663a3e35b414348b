# What `rcfarm node run --name n1` needs: write the node's own name for n1. With --root ROOT, put ROOT/ in front of
# every key and key_prefix.

# What it reports of itself and of its pods; those are stored by pod first, so their prefixes cannot name the node.
key        "rcfarm/nodes/n1" { policy = "write" }
key        "labels/node/n1"  { policy = "write" }
key_prefix "reality/n1/"     { policy = "write" }
key_prefix "status/pods/"    { policy = "write" }
key_prefix "health/"         { policy = "write" }
key_prefix "rcfarm/bell/"    { policy = "write" }

# Intents, their owners, and allocated devices; of other nodes, whether they still run a single instance.
key_prefix "intent/"               { policy = "read" }
key_prefix "labels/pod/n1/"        { policy = "read" }
key_prefix "rcfarm/nodes/"         { policy = "read" }
key        "rcfarm/allocations/n1" { policy = "read" }

# Where the peers of members of jobs on this node are.
key_prefix "rcfarm/peers/n1/" { policy = "read" }

# The sessions, and the agent's own check.
session_prefix ""     { policy = "write" }
service "rcfarm-node" { policy = "write" }

# Services of its pods, and of members of jobs (<job>-<type>-<index>): write your own prefixes for app-, and those of
# your jobs' names. Whoever may write a manifest for this node can answer for every
# name that stands here, so leave out consul, rcfarm-farm and the names of programs outside the pods. Without pods that
# have services, leave out the rule.
service_prefix "app-" { policy = "write" }
