"""What daemons need to call others' services: which addresses, signed how, by which keys.

    targets   addresses that may be called, checked where they are connected to
    signing   requests signed by Standard Webhooks
    secrets   keys and variables that stand in files on the daemon's own host

Workers call for HTTP and gRPC jobs, members for notifications. It needs aiohttp, which the extras
of both have; the SDK and the command line leave it alone.
"""
