"""A batch that fails for its data is halved until the one item is found and set aside.

One value that the database refuses must not hold up the hundreds that came with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from schedkit.errors import BrokenData

Item = TypeVar("Item")
A = TypeVar("A")

log = logging.getLogger(__name__)


async def halved(
    items: Sequence[Item], write: Callable[[Sequence[Item]], Awaitable[A]]
) -> tuple[list[tuple[Sequence[Item], A]], list[Item]]:
    """Write the items in one transaction, or in several where some are broken.

    Gives the answers with the items each is for, in order, and the broken items; each of those
    is told in the log.
    """
    try:
        return [(items, await write(items))], []
    except BrokenData as broken:
        error = broken
    if len(items) == 1:
        log.error("set aside, the database refuses it: %s: %r", error, items[0])
        return [], [items[0]]
    middle = len(items) // 2
    first, first_broken = await halved(items[:middle], write)
    second, second_broken = await halved(items[middle:], write)
    return first + second, first_broken + second_broken
