"""The demo behind `make demo`: bring a cluster up, give it jobs, watch, judge, take it down.

    app ─→ cluster   etcd, PostgreSQL, 3 schedd, 2 workerd, through `schedctl dev`
        ├→ receiver  the small HTTP server that the job `orders` posts to
        ├→ watch     each run as it happens, over the SDK
        ├→ verdict   pure: what was due against what ran
        └→ screen    everything that is printed

Invariants
- What was due is counted from the schedules alone, never from the runs.
- However the demo ends (its time, Ctrl-C, an error, even SIGKILL) the cluster ends with it, unless
  it was asked to keep it.
"""
