"""Shared foundation of daemons, SDK and command line.

    errors    the tree of failures; `Unavailable` is a dependency's
    clock     boot time for leases and waits, UTC for people
    backoff   waits between retries
    text      durations, sizes, rates, names, JSON as people write them
    tasks     loops that never end, sleeps that can be woken
    single_flight, group_commit  one flight, one transaction for concurrent callers
    config    file, environment and flags into frozen dataclasses, all errors at once
    daemon    service manager, reload, logs
    net       gRPC channels and listeners, TLS, HTTP servers, proxies
    protojson messages of the wire as JSON
    bounds    bounds of every field that enters a process
    egress    outgoing calls of jobs and webhooks: permitted targets, signatures, secrets
    objects   the result store
    failpoints  places where a test makes a daemon fail; without effect otherwise

Invariants
- No module here depends on jobs, runs or shards. Of our packages only `schedproto` is imported.
- A module has at least two users. A module with one user belongs to that user.
- Only the standard library, grpcio and protobuf are needed. `egress` also needs the daemons'
  extras.
"""
