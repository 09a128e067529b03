"""Owners of shards, in a cluster with members that start and stop."""

from __future__ import annotations

from schedclient import SyncClient
from support.wait import WAIT_TIMEOUT, wait_until


def owner_of(client: SyncClient, shard: int) -> str:
    """Wait for an owner and return it: a killed owner leaves the shard without one for a while."""

    def owner() -> str | None:
        return next(one.owner for one in client.cluster.shards() if one.shard == shard)

    return str(wait_until(owner, WAIT_TIMEOUT, f"an owner of shard {shard}"))
