"""One broken item doesn't hold up its batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schedd.store.halving import halved
from schedkit.errors import BrokenData


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


async def test_each_broken_item_is_told(caplog: pytest.LogCaptureFixture) -> None:
    await halved([1, 2], Table(2).write)
    assert "the database refuses it: out of range: 2" in caplog.text


async def test_another_failure_isnt_halved() -> None:
    async def write(batch: Sequence[int]) -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        await halved([1, 2], write)
