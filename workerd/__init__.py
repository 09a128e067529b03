"""workerd: takes assignments from the members of a cluster, runs them, and reports how they ended.

    attach ── one stream to each member (link, outbox) ── admission (core) ── work ── executors
                                                                               │
    keeper, a process of its own, kills what a dead worker left        courier ── spool

A worker knows only members' endpoints. It never decides what is due, only whether it may still
start what it was given; and it never forgets a result before a member has stored it.
"""
