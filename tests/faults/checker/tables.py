"""A table through time: what each commit made of each row, in commit order.

    table.after(key, commit)    the row as it stood once this commit was done
    table.before(key, commit)   and just before it

Commits are counted from 0 in the order of `commits.jsonl`, which is the order in which they took
effect: of two steps the one with the smaller `(commit, place)` came first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from faults.history import Change, History, Row

T = TypeVar("T")
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """Change of one row. `before` is None for a new row and if it isn't known."""

    key: Key
    op: str
    commit: int
    at: float
    lsn: str
    before: T | None
    after: T | None

    @property
    def where(self) -> str:
        """The commit in words."""
        return f"commit {self.commit} (lsn {self.lsn}) at {clock(self.at)}"


@dataclass(slots=True)
class Table(Generic[T]):
    """All steps of a table, in order, and by row."""

    steps: list[Step[T]] = field(default_factory=list)
    rows: dict[Key, list[Step[T]]] = field(default_factory=lambda: defaultdict(list))

    def of(self, *key: str) -> Sequence[Step[T]]:
        """The steps of one row."""
        return self.rows.get(key, ())

    def after(self, commit: int, *key: str) -> T | None:
        """The row once this commit was done; None: not there, or not known."""
        steps = self.of(*key)
        place = bisect_right(steps, commit, key=lambda step: step.commit)
        return steps[place - 1].after if place else None

    def before(self, commit: int, *key: str) -> T | None:
        """The row just before this commit."""
        steps = self.of(*key)
        place = bisect_left(steps, commit, key=lambda step: step.commit)
        return steps[place - 1].after if place else None

    def asof(self, at: float, *key: str) -> T | None:
        """The row as it stood at an instant."""
        last = None
        for step in self.of(*key):
            if step.at > at:
                break
            last = step.after
        return last

    def final(self) -> Iterator[T]:
        """The rows that are there at the end."""
        for steps in self.rows.values():
            if steps[-1].after is not None:
                yield steps[-1].after


def build(history: History, name: str, key: tuple[str, ...], parse: Callable[[Row], T]) -> Table[T]:
    """The table `name` through the whole history; `key` names its key's columns.

    Rows from before the first commit are steps of commit -1.
    """
    table: Table[T] = Table()
    printed: dict[Key, Row] = {}

    def step(change: Change, commit: int, at: float, lsn: str) -> None:
        values = {**change.row, **(change.key or {})} if change.op == "delete" else change.row
        identity = tuple(str(values[column]) for column in key)
        old = printed.pop(identity, None)
        after = None
        if change.op != "delete":
            printed[identity] = change.row if old is None else {**old, **change.row}
            after = parse(printed[identity])
        earlier = table.rows.get(identity)
        before = earlier[-1].after if earlier else None
        new = Step(identity, change.op, commit, at, lsn, before, after)
        table.steps.append(new)
        table.rows[identity].append(new)

    for row in history.initial.get(name, ()):
        step(Change(name, "insert", row), -1, history.meta.began, "before all")
    for number, commit in enumerate(history.commits):
        for change in commit.changes:
            if change.table == name:
                step(change, number, commit.at, commit.lsn)
    return table


def clock(at: float) -> str:
    """An instant as people read it, UTC, milliseconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%FT%T.%f")[:-3] + "Z"
