"""Outgoing calls of daemons: permitted addresses, signatures and secrets.

    policy    the `[egress]` settings: networks and hosts that may be called
    targets   the address check, at the place where addresses are connected to
    client    HTTP requests to permitted targets, and the meaning of their errors
    signing   requests signed by Standard Webhooks
    secrets   keys and variables in files on the daemon's own host

Workers make calls for HTTP and gRPC jobs, members for notifications. The client needs aiohttp,
which is in the extras of both. Its import takes a third of a worker's start, so daemons import the
client for the first request.
"""
