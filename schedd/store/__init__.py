"""PostgreSQL, the truth: everything that `schedd/ports.py` asks of a database.

    ports.py            the promise, one protocol a concern
      └ postgres.py     the stores: which body runs where (a lane, or the small pool)
          └ membership, firing, dispatch, results, workers, jobs, runs, audit
                        bodies: plain functions of an open transaction
              └ schema  tables for user calls;  arrays, rows: values in, values out
          └ database.py connections, lanes, tries; errors.py says what a failure means

Invariants
- An owner's transaction begins with `fence.lock_shards`, alone; bodies write only for the shards it
  gave, and draw tokens after it (PROTOCOL 1).
- Locks are taken in one order: term → tenures → shards → jobs → timers → runs → attempts, ids
  ascending; runs by (scheduled_at, run_id).
- No body commits. COMMIT is sent by `database.py`, by itself; when its answer is lost, the error is
  `OutcomeUnknown`, and nothing is tried again here.
- Nothing is bound to a session: no prepared statements, no advisory locks of sessions, no SET.
"""
