"""`schedd claim-prefix`: the operator assigns the etcd prefix to the cluster of this database."""

import asyncio

from sqlalchemy.engine import make_url

from schedd.config.member_config import Config
from schedd.core.cluster.coordination import Compare, Delete, Put
from schedd.core.cluster.membership import MAP, MEMBERS, members_of
from schedd.core.cluster.prefix_owner import CLUSTER, PrefixOwner, encode
from schedd.core.ids import new_id
from schedd.etcd import client as etcd_client
from schedd.ports import Coordination
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedkit.errors import Misconfigured


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
