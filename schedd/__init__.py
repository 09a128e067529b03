"""schedd: a distributed cron and job scheduler. etcd elects, PostgreSQL judges.

    __main__ → app                 connects adapters to ports; nothing else does
    runtime/  cluster/             a member: joins, leads or follows, leaves; one term, one tenure
    timers/  dispatch/  results/  reconcile/    the owned shards: fire, dispatch, collect, rescue
    watch/  sources/  telemetry/   change streams, subscriptions, metrics and traces
    api/      one function a user call     served by  rpc/ (gRPC)  and  web/ (HTTP)
    ports                          the interfaces of dependencies that loops and calls use
    store/  etcd/  notify/         adapters that implement them: PostgreSQL, etcd, notifications
    core/                          pure: values and decisions, no I/O, no clock

Leases give promptness; safety comes from the token or the epoch that is compared in the same
database transaction as the write. A process may sleep between any check and its effect.
"""
