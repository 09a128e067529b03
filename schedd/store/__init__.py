"""Read and write PostgreSQL, the authoritative state of the cluster.

    …Store classes      for stages and calls: which transaction runs where (a lane, the small pool)
      └ transaction bodies, plain functions of an open connection
          cluster     tenures, terms, shards, workers, the cluster pause, recovery
          timers      due timers to runs; backfills
          dispatch    runs to workers and back; overlap, pools, broadcasts
          results     reports of workers, dead letters, redrives, chains
          jobs, runs  calls of users
          notify      the outbox of notifications
          reconcile   deadlines, retention, statistics
      └ statements    parts that statements share: arrays, rows, keys
      └ connection    connections, lanes, retries; the classes of failures
      └ schema        table definitions, migrations, partitions, grants

Invariants
- An owner's transaction begins with `fence.lock_shards`, alone. Bodies write only for the shards
  that it returned, and draw tokens after it (docs/protocol-rules.md, P1.1 and P1.2).
- Locks are taken in one order: term → tenures → shards → jobs → timers → runs → attempts →
  notices, ids ascending; runs by (scheduled_at, run_id).
- No body commits. `database.py` sends COMMIT as a separate statement. If its answer is lost, the
  error is `OutcomeUnknown`, and nothing is retried here.
- Nothing depends on a session: no advisory locks of sessions, no SET. Statements are prepared only
  where no pooler is (`prepared`).
"""
