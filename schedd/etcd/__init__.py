"""etcd: who may act. A thin asyncio client, and the thread that keeps a member's lease alive.

    client.EtcdClient ── keys, transactions, leases, `follow`       the port `Coordination`
       │  follow.py      list, watch, list again on any doubt
       │     mirror.py   (pure) a prefix as of one revision, changed by events
       │  connection.py  several endpoints, one deadline, tokens     asyncio
       │     ring.py     (pure) which endpoint is next
       │     errors.py   (pure) what a status of etcd means
       │     codec.py    (pure) our values ⇄ messages
    keeper.LeaseKeeper ── one lease, kept alive                      a thread of its own
          trust.py       (pure) when to send, when trust ends
          lifeline.py    the thread's own connection                 no asyncio

Invariants
- Every call has a deadline. A write that wasn't answered raises `OutcomeUnknown`: it may have
  been applied; the caller reads back. A write is sent a second time only if the first sending
  provably was not applied.
- Reads are linearizable.
- A lease is trusted from the moment its last successful keepalive was *sent*, on CLOCK_BOOTTIME,
  and trust that has ended never comes back.
- `follow` never shows a state that etcd didn't have.
"""
