"""PostgreSQL, the truth: everything that `schedd/ports` asks of a database.

    ports               the promise, one protocol a concern
      └ postgres, owner, users    the stores: which body runs where (a lane, or the small pool)
          └ bodies, plain functions of an open transaction
              membership          tenures, terms, shards
              firing, assigning, dispatch    timers to runs, runs to workers, and back
              reported, results   what workers say
              jobs, runs, waiting, inserting, idempotency, audit    what people do
              noticing, notifications        what is to be told of runs, and what became of it
              unstarted, pauses   what may still start; the pause of the whole cluster
          └ fence, keys           the first locks of a batch
          └ schema, arrays, rows  tables for builders; values in, values out
          └ database, errors      connections, lanes, tries; what a failure means
    migrate, migrations, partitions    the schema's making

Invariants
- An owner's transaction begins with `fence.lock_shards`, alone; bodies write only for the shards it
  gave, and draw tokens after it (PROTOCOL 1).
- Locks are taken in one order: term → tenures → shards → jobs → timers → runs → attempts →
  notices, ids ascending; runs by (scheduled_at, run_id).
- No body commits. COMMIT is sent by `database.py`, by itself; when its answer is lost, the error is
  `OutcomeUnknown`, and nothing is tried again here.
- Nothing is bound to a session: no prepared statements, no advisory locks of sessions, no SET.
"""
