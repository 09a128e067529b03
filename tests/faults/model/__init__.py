"""The protocol, as a small adversarial model: what docs/protocol-rules.md says, run
against the worst of worlds.

    seed ─→ world (rows, etcd, members, workers, a network, a nemesis) ─→ steps ─→ judge

Members and workers do what the rules say and nothing else; everything around them does the worst
that it may. COMMITs are answered late or never, leases are dropped while their holders live, frames
come late, twice or not at all, clocks are read amiss, processes sleep between any two steps and die
at any, etcd and PostgreSQL come back without their last minutes, or as they were long ago. The
judge sees what a checker of a real run sees: rows in the order of their commits, physical starts,
and answers.

    make model                            every rule, and all rules but one, in a table
    make model WITHOUT=shard-row-fence    only without that one
    make model SEED=4711                  what happened in one seed, with its last events

`rules` names the rules; `rows` (with `holds`) and `etcd` are the two stores; `owner` (with
`dispatch` and `rescue`), `leader` (with `recovery`), `results`, `calls` and `worker` are the
players; `nemesis` breaks things, as the seed's `weather` has it; `judge` has the invariants, and
goes by `promises`; `search` runs seeds, `table` prints what they gave, `story` tells one.

A rule is a name in `rules.Rule`, looked at in one place of the model. All of them on: no invariant
may break in any seed. One of them off: some seed must break, else the model doesn't know why the
rule is there. Change a rule of the protocol only with this model changed and run beside it.
"""
