"""`schedd recover`: puts a restored database into recovery before any member starts on it.

Members detect lost data automatically while etcd has their marks and the timeline isn't lower than
before (`cluster/leader/recovery.py`). This command is for the other cases: etcd's state is lost
too, or the backup is from before a failover.
"""

import asyncio
from datetime import UTC
from typing import Final

from schedd.cluster.leader.recovery import recover as recover_in
from schedd.config.member_config import Config
from schedd.core.cluster.coordination import Delete
from schedd.core.cluster.membership import MAP, MEMBERS, members_of
from schedd.etcd import client as etcd_client
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedkit.errors import Misconfigured, Unavailable

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
