"""Writes check trust first, and drop lost shards and used-up epochs."""

from __future__ import annotations

from collections.abc import Sequence

from schedd.cluster.owner_transactions import Failed, Transactor
from schedd.cluster.ownership import ExhaustedEpoch
from schedd.core.events import ShardsLost
from schedd.core.ids import ShardId
from schedd.core.runs.model import Claim, LiveRun
from schedkit.errors import Unavailable
from support.runs import owning, run


async def test_a_shard_without_sequence_numbers_left_is_released_and_taken_over_again() -> None:
    """P1.8: an owner takes its own shard again, which raises the epoch; no token is issued."""
    ownership, events = owning(0, 1, 2), list[object]()
    transactor = Transactor(ownership, lambda: True, events.append)

    async def write(claim: Claim, items: Sequence[LiveRun]) -> list[LiveRun]:
        if ShardId(0) in claim.epochs:
            raise ExhaustedEpoch(ShardId(0))
        return list(items)

    answers = await transactor.by_lane([run(1, shard=0), run(2, shard=1)], write)

    [failed] = [answer for answer in answers if isinstance(answer, Failed)]
    assert [item.shard for item in failed.items] == [0]
    assert set(ownership.epochs) == {1, 2}
    assert [event.shards for event in events if isinstance(event, ShardsLost)] == [{0}]


async def test_an_owner_without_trust_writes_nothing() -> None:
    """P1.7: whatever is written goes by this gate."""
    written: list[LiveRun] = []

    async def write(claim: Claim, items: Sequence[LiveRun]) -> list[LiveRun]:
        written.extend(items)
        return list(items)

    transactor = Transactor(owning(0), lambda: False, lambda _event: None)
    [answer] = await transactor.by_lane([run(1)], write)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, Unavailable)
    assert written == []


async def test_shards_no_longer_owned_are_left_out() -> None:
    transactor = Transactor(owning(1), lambda: True, lambda _event: None)

    async def write(claim: Claim, items: Sequence[LiveRun]) -> list[LiveRun]:
        return list(items)

    assert await transactor.rows([run(1, shard=0), run(2, shard=1)], write) == [run(2, shard=1)]
