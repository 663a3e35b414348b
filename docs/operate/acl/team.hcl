# What people and scripts of one namespace need: its jobs, commands to them, and what came of them. Write your namespace
# for team-a. With --root ROOT, put ROOT/ in front of every key_prefix.

# Jobs and their labels, commands, the audit record of each change, and the doorbell that wakes the farm.
key_prefix "rcfarm/jobs/team-a/"       { policy = "write" }
key_prefix "labels/job/team-a/"        { policy = "write" }
key_prefix "rcfarm/commands/team-a/"   { policy = "write" }
key_prefix "rcfarm/audit_logs/team-a/" { policy = "write" }
key_prefix "rcfarm/bell/job/team-a/"   { policy = "write" }

# CronJobs, which make jobs by a schedule.
key_prefix "rcfarm/cron_jobs/team-a/"       { policy = "write" }
key_prefix "labels/cron_job/team-a/"        { policy = "write" }
key_prefix "rcfarm/cron_job_status/team-a/" { policy = "read" }
key_prefix "lock/rcfarm/cron_jobs/team-a/"  { policy = "read" }

# JobFlows, which make jobs of templates.
key_prefix "rcfarm/job_flows/team-a/"       { policy = "write" }
key_prefix "rcfarm/job_templates/team-a/"   { policy = "write" }
key_prefix "labels/job_flow/team-a/"        { policy = "write" }
key_prefix "rcfarm/job_flow_status/team-a/" { policy = "read" }
key_prefix "lock/rcfarm/job_flows/team-a/"  { policy = "read" }

# Statuses of the jobs and of their gangs, and which farm owns them.
key_prefix "rcfarm/job_status/team-a/"       { policy = "read" }
key_prefix "rcfarm/pod_groups/team-a/"       { policy = "read" }
key_prefix "rcfarm/pod_group_status/team-a/" { policy = "read" }
key_prefix "lock/rcfarm/jobs/team-a/"        { policy = "read" }

# To apply PodGroups that belong to no job, "write" for rcfarm/pod_groups/team-a/.

# Queues, priority classes, job types and cells, which teams share.
# Labels and states of pods, and which nodes serve their logs: those of other teams are seen,
# too, because these keys begin with the pod or the node. Manifests are not seen.
key_prefix "rcfarm/cells/"            { policy = "read" }
key_prefix "rcfarm/queues/"           { policy = "read" }
key_prefix "rcfarm/queue_status/"     { policy = "read" }
key_prefix "rcfarm/priority_classes/" { policy = "read" }
key_prefix "rcfarm/job_types/"        { policy = "read" }
key_prefix "rcfarm/nodes/"            { policy = "read" }
key_prefix "labels/pod/"              { policy = "read" }
key_prefix "status/pods/"             { policy = "read" }
