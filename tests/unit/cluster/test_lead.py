"""A term ends with its lease, or with the task that leads; also when both happen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from schedd.cluster.leader.term import Leadership, Mandate, TermOver, lead
from schedd.core.ids import Id, TenureId, Term

LEADERSHIP = Leadership(Mandate(TenureId(Id.from_int(1)), 1), Term(1), lambda: True)


@dataclass(frozen=True, slots=True)
class Duty:
    """Ends the term once `first` is done."""

    first: Callable[[], Awaitable[None]]
    name: str = "reconcile"

    async def run(self) -> NoReturn:
        await self.first()
        raise TermOver("another member leads")


async def at_once() -> None:
    """Nothing to wait for."""


async def test_an_ended_term_leaves_the_leading_task_uncanceled() -> None:
    async with asyncio.timeout(5):
        await lead(LEADERSHIP, [Duty(at_once)])
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_leader_canceled_at_the_end_of_its_term_ends() -> None:
    """A task group drops what cancels it while it ends for an error: a leader that woke up past its
    lease led no more, and never left its tenure either.
    """

    async def cancels_behind_it() -> None:
        duty = asyncio.current_task()
        assert duty is not None
        duty.add_done_callback(lambda _: leading.cancel())

    async def campaigns_for_ever() -> None:
        await lead(LEADERSHIP, [Duty(cancels_behind_it)])
        await asyncio.Event().wait()

    leading = asyncio.create_task(campaigns_for_ever(), name="candidate")
    await asyncio.wait([leading], timeout=5)
    assert leading.cancelled()
