"""Orders for an attacker and its reports: files, written again and again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.hostile.held import Holder

MOST_WRONG = 50
"""Answers that shouldn't have come, of which it tells."""


@dataclass(frozen=True, slots=True)
class Order:
    """Whom to attack, and how: `host:port` of each port. `runs`: what there is to watch;
    `connections`: how many to hold, of each kind; `report`: the file to tell in.
    """

    kind: str
    grpc: Sequence[str]
    http: Sequence[str]
    workers: Sequence[str]
    report: str
    seed: int = 0
    connections: int = 1000
    runs: Sequence[str] = ()


@dataclass
class Report:
    """Counts of what was done and answered: by kind of answer, how often. `rounds`: how often all
    of it was done, `deeds`: of so many; `held`: connections of each kind of port, by what became
    of them.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    deeds: int = 0
    done: int = 0
    rounds: int = 0

    def record(self, how: str, what: str, answer: str, wanted: set[str]) -> None:
        """This was answered so; it is wrong if it isn't one of those wanted."""
        self.answers[f"{how}: {answer}"] += 1
        if answer not in wanted:
            self.accuse(f"{how} {what}: {answer}")

    def accuse(self, what: str) -> None:
        """This shouldn't be."""
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(what)

    def count(self, holders: Mapping[str, Sequence[Holder]]) -> None:
        """Ask all connections what became of them."""
        for kind, each in holders.items():
            for holder in each:
                holder.count()
            self.held[kind] = {
                word: sum(getattr(holder, word) for holder in each)
                for word in ("wanted", "tried", "held", "most", "refused", "ended")
            }

    def write(self, file: Path) -> None:
        """Tell it, all at once."""
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(vars(self)))
        fresh.replace(file)
