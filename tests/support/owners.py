"""Who owns a shard, of a cluster whose members come and go."""

from __future__ import annotations

from schedclient import SyncClient
from support.wait import WAIT_TIMEOUT, wait_until


def owner_of(client: SyncClient, shard: int) -> str:
    """The member that does, once there is one: it may just have been killed, and nobody has it."""

    def owner() -> str | None:
        return next(one.owner for one in client.cluster.shards() if one.shard == shard)

    return str(wait_until(owner, WAIT_TIMEOUT, f"an owner of shard {shard}"))
