"""Halve a batch that fails for one of its items until that item is alone, and set it aside.

One value that PostgreSQL rejects, or that a transaction raises for, must not stop the hundreds that
came with it. Every batch that loops write goes through here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from schedkit.errors import BrokenData
from schedkit.set_aside import LONGEST_NAME, about_item, note_once

Item = TypeVar("Item")
A = TypeVar("A")


async def halved(
    items: Sequence[Item], write: Callable[[Sequence[Item]], Awaitable[A]]
) -> tuple[list[tuple[Sequence[Item], A]], list[Item]]:
    """Write the items in one transaction, or in several where some are broken.

    An item is broken if PostgreSQL or its driver rejects a value of it, or if the transaction
    raises for it. `write` is called again with the others: a transaction that raised wrote nothing.

    Returns:
        The answers with the items each is for, in order, and the broken items. Those are logged.

    Raises:
        Unavailable: PostgreSQL can't write any of them now.
        Fault: a bug that isn't about an item.
    """
    if not items:
        return [], []
    try:
        return [(items, await write(items))], []
    except Exception as broken:
        if not about_item(broken):
            raise
        error = broken
    if len(items) == 1:
        kind = type(items[0]).__name__.lower()
        trace = not isinstance(error, BrokenData)
        note_once(kind, repr(items[0])[:LONGEST_NAME], error, trace=trace)
        return [], [items[0]]
    middle = len(items) // 2
    first, first_broken = await halved(items[:middle], write)
    second, second_broken = await halved(items[middle:], write)
    return first + second, first_broken + second_broken
