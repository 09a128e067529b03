"""etcd: a thin asyncio client, and the thread that keeps a member's lease alive.

    client.EtcdClient ── keys, transactions, leases, `follow`          the port `Coordination`
       │  follow.py                 list, watch, list again on any doubt
       │  connection.py             several endpoints, one deadline, tokens     asyncio
       │     errors.py              (pure) what a status of etcd means
       │     codec.py               (pure) our values ⇄ messages
    lease_keeper.EtcdLeaseKeeper ── one lease, kept alive              a thread of its own
          lease_trust.py            (pure) when to send, when trust ends
          keepalive_connection.py   the thread's own connection         no asyncio

Invariants
- Every call has a deadline. A write that wasn't answered raises `OutcomeUnknown`: it may have been
  applied, and the caller reads back. A write is sent a second time only if etcd can't have applied
  the first.
- Reads are linearizable.
- A lease is trusted from the moment its last successful keepalive was *sent*, on CLOCK_BOOTTIME.
  Trust that has ended never returns.
- `follow` never shows a state that etcd didn't have.
"""
