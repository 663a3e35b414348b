# What `rc list|get|status|pods|plan|explain|watch`, `label get|list`, `audit list|verify`, `farm list`, `node list|get`
# and `pod list|get|logs` need.
# With --root ROOT, put ROOT/ in front of every key_prefix.
key_prefix "replication_controllers/"        { policy = "read" }
key_prefix "labels/"                         { policy = "read" }
key_prefix "intent/"                         { policy = "read" }
key_prefix "health/"                         { policy = "read" }
key_prefix "reality/"                        { policy = "read" }
key_prefix "status/pods/"                    { policy = "read" }
key_prefix "status/replication_controllers/" { policy = "read" }
key_prefix "lock/replication_controllers/"   { policy = "read" }
key_prefix "lock/rcfarm/"                    { policy = "read" }
key_prefix "audit_logs/"                     { policy = "read" }
key_prefix "rcfarm/"                         { policy = "read" }
# Key pairs of jobs: with --unencrypted-ssh-keys whoever reads them is a member.
key_prefix "rcfarm/job_keys/"                { policy = "deny" }
key_prefix "rcfarm/peers/"                   { policy = "deny" }
