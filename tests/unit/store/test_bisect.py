"""A broken item doesn't delay its batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schedd.store.statements.bisect import halved
from schedkit.errors import BrokenData, Fault, Unavailable
from schedkit.set_aside import counts


class Table:
    """Takes batches, but for those with a broken item in them."""

    def __init__(self, *broken: int) -> None:
        self.broken = set(broken)
        self.stored: list[int] = []
        self.tries = 0

    async def write(self, batch: Sequence[int]) -> int:
        self.tries += 1
        if self.broken & set(batch):
            raise BrokenData("out of range")
        self.stored += batch
        return len(batch)


async def test_a_sound_batch_is_one_transaction() -> None:
    table = Table()
    answers, broken = await halved(range(100), table.write)
    assert (table.tries, broken) == (1, [])
    assert [answer for _, answer in answers] == [100]


@pytest.mark.parametrize("places", [(0,), (99,), (37,), (3, 4), (0, 50, 99)])
async def test_the_broken_items_are_found_and_the_others_written_in_order(
    places: tuple[int, ...],
) -> None:
    table = Table(*places)
    answers, broken = await halved(range(100), table.write)

    assert broken == list(places)
    assert table.stored == [n for n in range(100) if n not in places]
    assert sum(answer for _, answer in answers) == 100 - len(places)
    assert table.tries <= 2 * len(places) * 8


async def test_each_broken_item_is_counted() -> None:
    before = counts().get("int", 0)
    await halved([1, 2], Table(2).write)
    assert counts()["int"] == before + 1


async def test_an_item_for_which_the_transaction_raises_is_broken() -> None:
    async def write(batch: Sequence[int]) -> int:
        return sum(2 // n for n in batch)

    answers, broken = await halved([2, 0, 1], write)
    assert (sum(answer for _, answer in answers), broken) == (3, [0])


@pytest.mark.parametrize("error", [Unavailable("stopped"), Fault("a wrong statement")])
async def test_an_error_not_about_an_item_is_raised_at_once(error: Exception) -> None:
    tries: list[int] = []

    async def write(batch: Sequence[int]) -> int:
        tries.append(len(batch))
        raise error

    with pytest.raises(type(error)):
        await halved([1, 2], write)
    assert tries == [2]
