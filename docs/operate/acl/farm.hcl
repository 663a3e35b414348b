# What `rcfarm farm run` needs. With --root ROOT, put ROOT/ in front of every key_prefix.

# Records, their labels, nodes and pods' health are read; users and node agents write them.
key_prefix "replication_controllers/"       { policy = "read" }
key_prefix "labels/replication_controller/" { policy = "read" }
key_prefix "labels/node/"                   { policy = "read" }
key_prefix "health/"                        { policy = "read" }
key_prefix "rcfarm/nodes/"                  { policy = "read" }
key_prefix "rcfarm/priority_classes/"       { policy = "read" }
key_prefix "rcfarm/cells/"                  { policy = "read" }
key_prefix "rcfarm/job_templates/"          { policy = "read" }
key_prefix "rcfarm/job_types/"              { policy = "read" }
# Sentinels, empty keys that keep the trees from being empty. Without the right to them there are only more requests.
key        "rcfarm/nodes/_/_/_"             { policy = "write" }
key        "rcfarm/priority_classes/_/_/_"  { policy = "write" }
key        "rcfarm/cells/_/_/_"             { policy = "write" }
key        "rcfarm/job_templates/_/_/_"     { policy = "write" }

# Pods, statuses and the audit log are the farms'.
key_prefix "labels/pod/"                     { policy = "write" }
key_prefix "intent/"                         { policy = "write" }
key_prefix "status/replication_controllers/" { policy = "write" }
key_prefix "audit_logs/"                     { policy = "write" }

# Allocations of nodes: written with the pods that request resources.
key_prefix "rcfarm/allocations/"             { policy = "write" }

# Queues and gangs: people and jobs write the records, the scheduler's owner the statuses. The right to write
# rcfarm/schedulers/ and rcfarm/queues/ is for the two default records alone, which the farm creates when they are
# missing.
key_prefix "rcfarm/schedulers/"       { policy = "write" }
key_prefix "rcfarm/queues/"           { policy = "write" }
key_prefix "labels/scheduler/"        { policy = "read" }
key_prefix "rcfarm/scheduler_status/" { policy = "write" }
key_prefix "rcfarm/queue_status/"     { policy = "write" }
key_prefix "rcfarm/pod_group_status/" { policy = "write" }
key_prefix "lock/rcfarm/schedulers/"  { policy = "write" }

# Jobs: their records go at their end, commands when they are carried out; node agents report on pods.
key_prefix "rcfarm/jobs/"                    { policy = "write" }
key_prefix "rcfarm/job_status/"              { policy = "write" }
key_prefix "rcfarm/peers/"                   { policy = "write" }
key_prefix "rcfarm/job_keys/"                { policy = "write" }
key_prefix "rcfarm/pod_groups/"              { policy = "write" }
key_prefix "rcfarm/commands/"                { policy = "write" }
key_prefix "lock/rcfarm/jobs/"               { policy = "write" }
key_prefix "labels/job/"                     { policy = "read" }
key_prefix "reality/"                        { policy = "read" }
key_prefix "status/pods/"                    { policy = "read" }

# CronJobs: their records go at their end. Their jobs are written below rcfarm/jobs/.
key_prefix "rcfarm/cron_jobs/"               { policy = "write" }
key_prefix "rcfarm/cron_job_status/"         { policy = "write" }
key_prefix "lock/rcfarm/cron_jobs/"          { policy = "write" }
key_prefix "labels/cron_job/"                { policy = "read" }

# JobFlows: their records go at their end. Their jobs are written below rcfarm/jobs/, and stopped by rcfarm/commands/.
key_prefix "rcfarm/job_flows/"               { policy = "write" }
key_prefix "rcfarm/job_flow_status/"         { policy = "write" }
key_prefix "lock/rcfarm/job_flows/"          { policy = "write" }
key_prefix "labels/job_flow/"                { policy = "read" }

# Ownership, presence, doorbells, the layout's version.
key_prefix "lock/replication_controllers/" { policy = "write" }
key_prefix "rcfarm/farms/"                 { policy = "write" }
key_prefix "rcfarm/bell/"                  { policy = "write" }
key        "rcfarm/layout"                 { policy = "write" }

# The session, and the farm's own check. Narrower: session "NODE" and service "rcfarm-farm" on that node's agent.
session_prefix ""      { policy = "write" }
service "rcfarm-farm"  { policy = "write" }
