"""Set aside the one item that a loop can't handle, and continue with the others.

    for item in items:
        with set_aside("timer", item):                       one item at a time
            handle(item)
    runs = each("run", rows, live_run, name=run_of)          rows: each is logged once by its name
    together("run", runs, put_runs, name=id_of)              all in one call, each if that fails

A value from a worker, a caller, another member or the database that raises must not end the loop,
and with it the process. So any exception of an item is logged with its traceback and counted
(`counts`, a metric of each daemon). The broad `except` of the daemons is here.

Invariants
- `Unavailable` isn't about the item: it is raised, and the loop retries. `Fault` is a declared bug
  of ours: it is raised, and ends the process. A cancellation is raised, too.
- Batches that a transaction writes are halved in the store (`schedd.store.statements.bisect`).
- Log lines of one kind are written at most once per second, with a count.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import BrokenData, Fault, Unavailable

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

LONGEST_NAME: Final = 200
"""Characters of an item in a line of log."""

MOST_NAMED: Final = 10_000
"""Names of items that are logged once only. Above this number all names are forgotten."""

_counted: Final = Counter[str]()
_named: Final = set[tuple[str, str]]()
_lines: Final[dict[str, LimitedLine]] = {}


def counts() -> Mapping[str, int]:
    """Return how many items were set aside since the process started, by their kind."""
    return _counted


def note(kind: str, item: object, why: object, *, error: BaseException | None = None) -> None:
    """Count an item that was set aside, and log it. `kind`: a metric's label, from a small set."""
    _counted[kind] += 1
    _log(kind, item, why, error)


def _log(kind: str, item: object, why: object, error: BaseException | None) -> bool:
    """Log the item. Return whether it was logged: at most one line of a kind per second."""
    if count := _lines.setdefault(kind, LimitedLine()).due():
        log.log(
            logging.ERROR if error is not None else logging.WARNING,
            "item set aside kind=%s item=%s count=%d: %s",
            kind.replace(" ", "_"),
            item if isinstance(item, str) else repr(item)[:LONGEST_NAME],
            count,
            why,
            exc_info=error,
        )
    return bool(count)


def note_once(kind: str, name: str, error: Exception, *, trace: bool = True) -> None:
    """Count an item that is handled repeatedly, and log it once by its name."""
    _counted[kind] += 1
    if (kind, name) in _named:
        return
    if _log(kind, name, f"{type(error).__name__}: {error}", error if trace else None):
        if len(_named) >= MOST_NAMED:
            _named.clear()
        _named.add((kind, name))


def about_item(error: Exception) -> bool:
    """Return whether an exception is about the handled item, not about a dependency."""
    return isinstance(error, BrokenData) or not isinstance(error, (Unavailable, Fault))


class set_aside:  # noqa: N801 - read as a statement, as `contextlib.suppress` is
    """Handle one item in this block. Its exception is noted, and passed to `then`.

    Args:
        kind: The kind of the item, in a word or two.
        item: The item's name in the log.
        passes: Exceptions that aren't about the item alone.
        then: Called with the exception, to do what the item needs.
        logged: False if `then` writes the log line.
        once: The item is handled repeatedly, such as a row that is read each second. It is logged
            once by its name, and counted each time.
    """

    __slots__ = ("_item", "_kind", "_logged", "_once", "_passes", "_then")

    def __init__(
        self,
        kind: str,
        item: object,
        *,
        passes: tuple[type[Exception], ...] = (),
        then: Callable[[Exception], object] | None = None,
        logged: bool = True,
        once: bool = False,
    ) -> None:
        self._kind, self._item, self._logged, self._once = kind, item, logged, once
        self._passes, self._then = passes, then

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Return True if the item was set aside."""
        if not isinstance(error, Exception) or not about_item(error):
            return False
        if isinstance(error, self._passes):
            return False
        if self._once:
            note_once(self._kind, str(self._item), error)
        elif self._logged:
            note(self._kind, self._item, f"{type(error).__name__}: {error}", error=error)
        else:
            _counted[self._kind] += 1
        if self._then is not None:
            self._then(error)
        return True


def together(
    kind: str,
    items: Sequence[T],
    handle: Callable[[Sequence[T]], R],
    *,
    name: Callable[[T], object],
) -> list[R]:
    """Return the result of `handle` for all items at once. If it raises, return the results for
    each item alone, without items for which it raises again (`each`).
    """
    try:
        return [handle(items)]
    except Exception as error:
        if not about_item(error):
            raise
    return each(kind, [[item] for item in items], handle, name=lambda alone: name(alone[0]))


def each(
    kind: str,
    items: Iterable[T],
    handle: Callable[[T], R],
    *,
    name: Callable[[T], object] | None = None,
) -> list[R]:
    """Return the results of `handle` for all items, without items for which it raises. `name`:
    names an item that is handled repeatedly (`once` of `set_aside`).
    """
    found: list[R] = []
    for item in items:
        named = item if name is None else name(item)
        with set_aside(kind, named, once=name is not None):
            found.append(handle(item))
    return found
