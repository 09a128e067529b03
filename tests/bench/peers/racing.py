"""A race of several rounds: which contestant ran at what rate in which round, and the figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.errors import Failed, LeftOut
from bench.peers.peer import Drained
from bench.peers.roster import OURSELVES, Contestant
from bench.peers.summary import ratio, ratios, spread


@dataclass(slots=True)
class Record:
    """Record of a contestant so far; `rates` by round."""

    rates: dict[int, float] = field(default_factory=dict)
    rounds: list[Drained] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    left_out: str = ""


class Race:
    """So many jobs (of each contestant its share), and a deadline of seconds for each drain."""

    def __init__(self, jobs: int, cache: Path, deadline: float) -> None:
        self._jobs = jobs
        self._cache = cache
        self._deadline = deadline
        self._records: dict[str, Record] = {}

    def run(self, number: int, contestant: Contestant) -> Mapping[str, Any] | None:
        """Run its part of a round; return the figures, None if it was left out before."""
        record = self._record(contestant)
        if record.left_out:
            return None
        jobs = max(1, round(self._jobs * contestant.share))
        load = round(os.getloadavg()[0], 1)
        head = {"round": number, "peer": contestant.name, "jobs": jobs, "load_before": load}
        try:
            drained = contestant.drain(jobs, self._cache, self._deadline)
        except LeftOut as reason:
            record.left_out = str(reason)
            return {**head, "left_out": record.left_out}
        except Failed as reason:
            record.troubles.append(str(reason))
            return {**head, "trouble": str(reason)}
        record.rounds.append(drained)
        if drained.watched.trouble:
            record.troubles.append(drained.watched.trouble)
        if drained.rate is not None:
            record.rates[number] = drained.rate
        ours = self._record(OURSELVES).rates.get(number)
        return {**head, **figures(drained), "schedd_over_peer": ratio(ours, drained.rate)}

    def summary(self, contestant: Contestant) -> Mapping[str, Any]:
        """Of all rounds."""
        record = self._record(contestant)
        head = {"summary": contestant.name}
        if record.left_out:
            return {**head, "left_out": record.left_out}
        compared = ratios(self._record(OURSELVES).rates, record.rates)
        return {
            **head,
            "rounds": len(record.rates),
            "rate": spread(list(record.rates.values())),
            "schedd_over_peer": spread(compared, 3),
            "jobs": max((one.jobs for one in record.rounds), default=0),
            "lost": sum(one.verdict.lost for one in record.rounds),
            "duplicates": sum(one.verdict.duplicates for one in record.rounds),
            "incomplete": sum(one.jobs - one.watched.completed for one in record.rounds),
            "troubles": record.troubles,
            "settings": {**contestant.settings, "processes": contestant.processes},
            "versions": record.rounds[-1].versions if record.rounds else {},
            "store": record.rounds[-1].store if record.rounds else {},
        }

    def clean(self, contestant: Contestant) -> bool:
        """Whether it came to its end in each round, with nothing lost and nothing twice."""
        record = self._record(contestant)
        wrong = (one.verdict.lost + one.verdict.duplicates for one in record.rounds)
        return bool(record.rounds) and not record.troubles and not any(wrong)

    def _record(self, contestant: Contestant) -> Record:
        return self._records.setdefault(contestant.name, Record())


def figures(drained: Drained) -> Mapping[str, Any]:
    """A drain in figures."""
    seconds = drained.seconds
    return {
        "rate": None if drained.rate is None else round(drained.rate),
        "seconds": None if seconds is None else round(seconds, 2),
        "completed": drained.watched.completed,
        "distinct": drained.verdict.distinct,
        "lost": drained.verdict.lost,
        "duplicates": drained.verdict.duplicates,
        "unknown": drained.verdict.unknown,
        "enqueued_per_second": round(drained.jobs / drained.enqueueing),
        **({"trouble": drained.watched.trouble} if drained.watched.trouble else {}),
    }
