"""The demo of `make demo`: start a cluster, create jobs, watch, check, stop the cluster.

    app ─→ cluster   etcd, PostgreSQL, 3 schedd, 2 workerd, through `schedctl dev`
        ├→ receiver  the small HTTP server that the job `orders` posts to
        ├→ watch     each run as it happens, over the SDK
        ├→ verdict   pure: what was due against what ran
        └→ screen    everything that is printed

Invariants
- Due times are counted only from the schedules, never from the runs.
- When the demo ends (a timeout, Ctrl-C, an error, even SIGKILL), the cluster is stopped, unless the
  user asked to keep it.
"""
