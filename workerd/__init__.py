"""workerd: receives assignments from the members of a cluster, runs them, and reports the results.

    stream (one to each member, outbox) ── admission (core) ── runs ── executors
                                                                 │
    keeper, a separate process, kills what a worker left    delivery ── spool

A worker knows only members' endpoints. It never decides which runs are due, only whether an
assignment may still start. It keeps each result until a member has stored it.
"""
