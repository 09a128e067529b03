"""A whole cluster on one machine: real etcd, real PostgreSQL, members and workers as processes.

Every process is started detached, in a session of its own, and outlives the command that started
it. What is known about it stands in two files of the cluster's folder D:

- `cluster.json`, for anyone who wants to drive, kill or pause it: pids and addresses;
- `state.json`, our own: when each of those pids was born, so that a pid the system has given to
  somebody else is never signalled nor taken for ours, and the ports that no one else needs to know.

Rules: nothing dead restarts by itself; `up` on the same folder starts what is missing and nothing
else; `down` leaves no process and keeps the data; one command at a time works on a folder (a lock).
"""
