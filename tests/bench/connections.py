"""Channels that are each a connection: gRPC has those that are alike share one, and its bounds.

A load in one process stands for many callers, each with a process and a connection of its own. What
makes the product's channels is replaced by this in the process of the load alone.
"""

from __future__ import annotations

import grpc.aio

from schedkit.net.channel import CLIENT_OPTIONS, TLS


def apart(endpoint: str, *, tls: TLS | None, use: str = "") -> grpc.aio.Channel:
    """Return an unshared channel like `schedkit.net.channel.connect`, without TLS."""
    assert tls is None, "a cluster of the benchmarks speaks in the clear"
    options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.insecure_channel(endpoint, options=options)
