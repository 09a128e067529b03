"""gRPC channels with a separate connection each.

gRPC lets equal channels of a process share one connection. In a benchmark, one process simulates
many callers, and each caller must have its own connection. `apart` replaces the function of the
product that creates channels, only in the benchmark's process.
"""

from __future__ import annotations

import grpc.aio

from schedkit.net.channel import CLIENT_OPTIONS, TLS


def apart(endpoint: str, *, tls: TLS | None, use: str = "") -> grpc.aio.Channel:
    """Return an unshared channel like `schedkit.net.channel.connect`, without TLS."""
    assert tls is None, "a cluster of the benchmarks has no TLS"
    options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.insecure_channel(endpoint, options=options)
