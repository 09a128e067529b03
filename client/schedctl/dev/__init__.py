"""A whole cluster on one machine: real etcd, real PostgreSQL, members and workers as processes.

Every process is started detached, in its own session, and outlives the command that started it.
Two files in the cluster's folder D record it:

- `cluster.json`, for other programs that use, kill or pause it: pids and addresses;
- `state.json`, internal: the start time of each pid, so that a reused pid is never signaled, and
  the internal ports.

Invariants
- A stopped process isn't restarted automatically; `up` on the same folder starts what is missing.
- `down` leaves no process running and keeps the data.
- One command at a time works on a folder (a lock).
"""
