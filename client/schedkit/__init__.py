"""What every schedd program stands on: daemons, the SDK and the command line alike.

    errors    the tree of failures; `Unavailable` is the world's
    clock     boot time for leases and waits, UTC for what people read
    backoff   how long to wait before trying again
    duration  `1h30m` to a timedelta and back
    tasks     eternal loops, sleeps that can be woken
    logs      standard logging as text or JSON lines
    config    file, environment and flags into frozen dataclasses, all errors at once
    endpoints what a gRPC job calls, as its definition writes it
    channel   gRPC channels and listeners, TLS, the loopback rule
    credentials  whether a daemon can live by the files of its TLS
    failpoints  places where a test breaks a daemon; nothing unless armed
    service   a daemon's life under a service manager (notify: what it tells it)
    jsonform  messages of the wire as JSON, one way everywhere
    outward   calls of others' services: addresses that may be called, signatures, keys in files

Invariants
- Nothing here knows jobs, runs or shards; only the wire's package may be imported.
- A module has two users or more; what has one belongs to that one.
- No extra is needed: the standard library, grpcio and protobuf. `outward` needs the daemons'.
"""
