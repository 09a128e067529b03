"""What daemons need to call others' services: which addresses, signed how, by which keys.

    policy    the `[egress]` settings: networks and hosts that may be called
    targets   the address check, at the place where addresses are connected to
    client    HTTP requests to permitted targets, and what their errors mean
    signing   requests signed by Standard Webhooks
    secrets   keys and variables that stand in files on the daemon's own host

Workers call for HTTP and gRPC jobs, members for notifications. It needs aiohttp, which the extras
of both have; the SDK and the command line leave it alone.
"""
