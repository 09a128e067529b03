"""schedd: a distributed cron and job scheduler. etcd elects, PostgreSQL judges.

    __main__ → app                 ties adapters to ports; nothing else does
    member                         join → follow or lead → leave: the daemon's life
      ├ leader/                    elect, fence, assign: one term
      └ owner/                     fire, dispatch, collect, rescue: the owned shards
    api/      one function a user call     served by  rpc/ (gRPC)  and  web/ (HTTP)
    ports                          what loops and calls need of the world
    store/  etcd/  senders/        adapters that give it: PostgreSQL, etcd, who is told
    core/                          pure: values and decisions, no I/O, no clock

Leases give promptness; safety comes from the token or the epoch that is compared in the same
database transaction as the write. A process may sleep between any check and its effect.
"""
