"""`schedd recover`: puts a restored database into recovery before any member starts on it.

Members detect lost data automatically while etcd has their marks and the timeline isn't lower than
before (`cluster/leader/recovery.py`). This command is for the other cases: etcd's state is lost
too, or the backup is from before a failover.
"""

import asyncio
from datetime import UTC
from typing import Final

from sqlalchemy.engine import make_url

from schedd.cluster.leader.recovery import recover as recover_in
from schedd.config.member_config import Config
from schedd.core.cluster.coordination import Compare, Delete, Put
from schedd.core.cluster.membership import MAP, MEMBERS, members_of
from schedd.core.cluster.prefix_owner import CLUSTER, PrefixOwner, encode
from schedd.core.ids import new_id
from schedd.etcd import client as etcd_client
from schedd.ports import Coordination
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedkit.errors import Misconfigured, Unavailable

# `schedd claim-prefix`: the operator assigns the etcd prefix to the cluster of this database.


def prefix_owner(config: Config, cluster_id: str) -> PrefixOwner:
    """Return the claim that a member of this configuration makes."""
    url = make_url(config.postgres.dsn)
    place = f"{url.host}:{url.port or 5432}" if url.host else "local"
    return PrefixOwner(cluster_id, f"{place}/{url.database or ''}", new_id())


def claim_prefix(config: Config) -> str:
    """Write the claim, whatever the earlier one; return the text to print.

    Raises:
        Misconfigured: members of the other cluster run.
        Unavailable: PostgreSQL or etcd doesn't answer.
    """
    return asyncio.run(_claim(config))


async def write_claim(etcd: Coordination, owner: PrefixOwner) -> None:
    """Write the claim if no member runs, and none joins meanwhile.

    Raises:
        Misconfigured: members run, or another claim was written meanwhile.
        Unavailable: etcd doesn't answer.
    """
    before = await etcd.get(CLUSTER)
    if members := members_of(await etcd.list(MEMBERS)):
        names = ", ".join(member.name for member in members)
        raise Misconfigured(
            f"the etcd prefix can't be assigned while members use it ({names}): stop these members,"
            " then run `schedd claim-prefix` again"
        )
    unchanged = Compare.absent(CLUSTER) if before is None else Compare.unchanged(before)
    written = await etcd.txn(
        [unchanged, Compare.none_under(MEMBERS)], [Put(CLUSTER, encode(owner)), Delete(MAP)]
    )
    if not written.succeeded:
        found = ", ".join(entry.key for entry in await etcd.list(MEMBERS)) or "none"
        raise Misconfigured(
            "nothing was written: while this command ran, a member joined under this etcd prefix or"
            f" the prefix's owner changed. Stop all members (keys of members in etcd: {found}),"
            " then run `schedd claim-prefix` again"
        )


async def _claim(config: Config) -> str:
    store = Stores(Database(config.postgres.dsn, lanes=1))
    try:
        await store.check()
        cluster_id = await store.membership.cluster_id()
    finally:
        store.close()
    owner = prefix_owner(config, cluster_id)
    async with etcd_client.connect(
        config.etcd.access(), deadline=config.call_deadline, root=config.etcd.prefix
    ) as etcd:
        await write_claim(etcd, owner)
    return f"etcd prefix {config.etcd.prefix!r} belongs to cluster {cluster_id} from now on"


NO_ETCD: Final = (
    "the database is in recovery, but etcd doesn't answer: members may be running, and etcd may"
    " have an old shard map. Start members only if etcd was lost, too, or schedd's keys in etcd are"
    " deleted"
)


def recover(config: Config) -> list[str]:
    """Put the database into recovery; return the lines to print.

    Raises:
        Misconfigured: members run.
        Unavailable: the database doesn't answer.
    """
    return asyncio.run(_recover(config))


async def _recover(config: Config) -> list[str]:
    said = await _forget_map(config)
    store = Stores(Database(config.postgres.dsn, lanes=1))
    try:
        await store.check()
        pause = await recover_in(store.recovery, None, None)
    finally:
        store.close()
    began = pause.began.astimezone(UTC).isoformat(timespec="seconds")
    return [*said, f"in recovery since {began}: {pause.note}"]


async def _forget_map(config: Config) -> list[str]:
    """Delete the shard map and timeline of the lost database, so that no member follows them."""
    access = config.etcd.access()
    try:
        async with etcd_client.connect(
            access, deadline=config.call_deadline, root=config.etcd.prefix
        ) as etcd:
            members = members_of(await etcd.list(MEMBERS))
            if members:
                names = ", ".join(member.name for member in members)
                raise Misconfigured(
                    f"the recovery can't begin while members run ({names}): stop all members, then"
                    " run `schedd recover` again"
                )
            await etcd.txn([], [Delete(MAP)])
    except Unavailable as away:
        return [f"{NO_ETCD} ({away})"]
    return []
