"""Hostile peer of one kind, at all the ports it is given, until it is stopped.

    python -m faults.hostile.attack '{"kind": "malformed", "grpc": ["host:port"], …}'

`report` is a file that says again and again what became of it: what was said, how it was answered.
What is wrong is a list of deeds (`messages`), each at one port or to one call, in an order by the
seed: a round is over when all of them were done. Kinds that hold connections open (`connections`)
count how many there are and were at most, were refused at once, and were ended later, by kind of
port.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from faults.hostile import connections
from faults.hostile.held import Holder
from faults.hostile.messages import Deed, Messages
from faults.hostile.order import Order, Report

HANDS = 4
"""Deeds at a time."""
REPORT_EVERY = 0.3

HOLDS = {
    "half-open": connections.half_open,
    "idle": connections.idle,
    "slow": connections.slow,
}


async def attack(order: Order) -> None:
    """Until cancelled."""
    said, holders = Report(), dict[str, Sequence[Holder]]()
    async with asyncio.TaskGroup() as group:
        group.create_task(_tell(said, holders, Path(order.report)), name="report")
        if order.kind in HOLDS:
            holders |= HOLDS[order.kind](order)
            for each in (one for of_kind in holders.values() for one in of_kind):
                group.create_task(each.run(), name=f"held at {each.address}")
                group.create_task(each.read_slowly(), name=f"slow at {each.address}")
        else:
            messages = Messages(order, said)
            deeds = {"malformed": messages.malformed, "oversized": messages.oversized}
            await _rounds(deeds[order.kind], random.Random(order.seed), said)


async def _rounds(
    of: Callable[[random.Random], Iterator[Deed]], luck: random.Random, said: Report
) -> None:
    while True:
        deeds = list(of(luck))
        luck.shuffle(deeds)
        said.deeds = len(deeds)
        waiting = iter(deeds)
        async with asyncio.TaskGroup() as group:
            for hand in range(HANDS):
                group.create_task(_do(waiting, said), name=f"hand {hand}")
        said.rounds += 1


async def _do(deeds: Iterator[Deed], said: Report) -> None:
    for deed in deeds:
        await deed()
        said.done += 1
        await asyncio.sleep(0.005)


async def _tell(said: Report, holders: Mapping[str, Sequence[Holder]], file: Path) -> None:
    while True:
        said.count(holders)
        said.write(file)
        await asyncio.sleep(REPORT_EVERY)


async def _live(order: Order) -> None:
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        await attack(order)
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_live(Order(**json.loads(sys.argv[1]))))
