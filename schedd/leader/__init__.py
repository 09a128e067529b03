"""The leader: who it is, and what only it does.

    elect ──mandate──→ term ──→ reconcile, each second and at each change
                                  fence   tenures whose key has gone
                                  assign  shards to the members that are left

Invariants
- A mandate is one life of the election key; every write to etcd is guarded by it.
- A term is one number in PostgreSQL, raised once under a mandate; every write to PostgreSQL
  compares it. A leader that sleeps through its end writes nothing afterwards.
- Any doubt while acquiring means: not acquired. Any doubt later: look, never assume.
"""
