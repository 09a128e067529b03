"""The owner: fires the jobs of its shards on time, hands runs to workers, takes their results.

    fire ──→ board ──→ dispatch ──→ workers ══stream══ workerd
              ↑  ↑                     │
              │  └──── rescue          └──→ collect ──→ database ──→ acknowledged
              └────────────────────────────────┘

`ownership` says which shards, `shards` follows the leader's map, `transact` writes for them: by
lanes, each transaction behind the lock of its shard rows. `board` is what is near in time, held in
memory; the rows are the truth and `rescue` reads them again each second. `workers`,
`worker_leases`, `greeting` and `collect` live as long as the daemon, for a result counts by its
token alone, whoever takes it; the rest is made anew with each tenure (`owner`).
"""
