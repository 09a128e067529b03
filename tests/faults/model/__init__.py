"""An adversarial model of the protocol: docs/protocol-rules.md in a hostile environment.

    seed ─→ world (rows, etcd, members, workers, network, nemesis) ─→ steps ─→ judge

Members and workers follow the rules, and do nothing else. Everything else behaves as badly as it
may: COMMITs are answered late or never; leases expire while their holders run; messages arrive
late, twice or not at all; clocks are wrong; processes sleep or stop between any two steps; etcd and
PostgreSQL lose their last minutes, or return to an old state. The judge sees the same facts as the
checker of a fault test: rows in the order of commits, starts of attempts, and answers.

    make model                            run with all rules, then without each rule; print a table
    make model WITHOUT=shard-row-fence    run without this rule
    make model SEED=4711                  run one seed, and print its last events

`rules` names the rules. `rows` (with `holds`) and `etcd` are the two stores. `owner` (with
`dispatch` and `rescue`), `leader` (with `recovery`), `results`, `calls` and `worker` are the
processes. `nemesis` injects faults, as the seed's `weather` says. `judge` checks the invariants,
with the help of `promises`. `search` runs seeds, `table` prints results, `story` replays one seed.

Invariants
- Each rule is a name in `rules.Rule`, and is checked in one place of the model.
- With all rules, no invariant breaks in any seed.
- Without a rule, an invariant breaks in some seed. If none does, the model doesn't cover the rule.
- A change of the protocol also changes this model.
"""
