"""A member that judges what is due of chains in shard 0, once: a program, so that it may die.

    SCHEDD_FAILPOINTS="chain.before_commit=kill" python -m support.chain_joiner DSN

Prints how many joins it is about to judge.
"""

from __future__ import annotations

import asyncio
import sys

from schedd.core.ids import ShardId
from schedd.core.jobs.chains import ChainParents, Wanted, When
from schedd.core.jobs.definition import Priority
from support.store import World


async def main(dsn: str) -> None:
    """Take all shards, look, and judge."""
    async with World.at(dsn) as world:
        me = await world.member()
        due = await me.store.chains.due([ShardId(0)])
        after = ChainParents((), When.SUCCESS)
        wanted = [Wanted(one, 1, after, Priority.MEDIUM.value) for one in due]
        sys.stdout.write(f"{len(wanted)}\n")
        sys.stdout.flush()
        await me.store.chains.join(me.claim(0), wanted)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
