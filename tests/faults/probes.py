"""The jobs of a fault run: they write down themselves, outside the system, that they ran.

What one writes, `probe.sh` shows. A job that is killed has still written its start, and the lines
of jobs that run at once never mix.

`MIX` has something of everything: quick and slow, tries that fail, each policy of catching up,
each policy of overlap, at least once and at most once; and so many each-second jobs that a fault of
two seconds meets more than twenty instants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from faults.history import Definition, Schedule

SCRIPT = Path(__file__).with_name("probe.sh").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class DatabaseProbe:
    """Probe job. `every`: seconds. `lasts`: seconds of its run. `more`: more of the job's fields.

    `gap`, `repeated`: its policy where clocks change (docs/semantics/time-zones-and-dst.md).
    """

    name: str
    cron: str | None = "* * * * * *"
    every: int | None = None
    lasts: float = 0.0
    fails_first: bool = False
    catch_up: str = "latest"
    overlap: str = "skip"
    at_most_once: bool = False
    attempts: int = 1
    timeout: int = 30
    more: Mapping[str, Any] = field(default_factory=dict)
    zone: str = "UTC"
    gap: str = "run_after"
    repeated: str = "first"

    def spec(self, probes: Path) -> dict[str, Any]:
        """The job as a client gives it; its lines go to the folder `probes`."""
        when = {"cron": self.cron} if self.cron else {"every": f"{self.every}s"}
        return {
            **when,
            "catch_up": {"policy": self.catch_up},
            "overlap": self.overlap,
            "delivery": "at_most_once" if self.at_most_once else "at_least_once",
            "retry": {"max_attempts": self.attempts, "backoff": "200ms", "jitter": 0.0},
            "timeout": f"{self.timeout}s",
            "shell": shell(probes, self.lasts, fails_first=self.fails_first),
            **self._where_clocks_change(),
            **self.more,
        }

    def _where_clocks_change(self) -> dict[str, Any]:
        if not self.cron:
            return {}
        return {"time_zone": self.zone, "dst": {"gap": self.gap, "overlap": self.repeated}}

    def definition(self, at: float, job_id: str | None, generation: int, op: int) -> Definition:
        """The same for the history."""
        return Definition(
            at=at,
            job_id=job_id,
            namespace="default",
            name=self.name,
            generation=generation,
            schedule=Schedule(
                cron=self.cron,
                every=self.every,
                zone=self.zone,
                gap=self.gap,
                overlap=self.repeated,
            ),
            catch_up=self.catch_up,
            overlap=self.overlap,
            delivery="at_most_once" if self.at_most_once else "at_least_once",
            attempts=self.attempts,
            retry={"backoff": 0.2},
            timeout=self.timeout,
            op=op,
        )


def shell(probes: Path, lasts: float = 0.0, *, fails_first: bool = False) -> dict[str, Any]:
    """The action of a probe that writes to the folder `probes`."""
    return {
        "argv": ["/bin/bash", "-c", SCRIPT],
        "env": {
            "PROBES": str(probes),
            "LASTS": f"{lasts:g}",
            "FAILS_FIRST": "yes" if fails_first else "",
        },
    }


def once(probes: Path, lasts: float = 0.0) -> dict[str, Any]:
    """The work that the load submits."""
    return {"shell": shell(probes, lasts=lasts), "timeout": "30s"}


EVERY_TWO = "*/2 * * * * *"

MIX: Sequence[DatabaseProbe] = (
    *(DatabaseProbe(f"tick-{n}") for n in range(1, 7)),
    *(DatabaseProbe(f"all-{n}", catch_up="all", overlap="allow") for n in range(1, 3)),
    DatabaseProbe("none-1", catch_up="none"),
    *(DatabaseProbe(f"most-{n}", at_most_once=True) for n in range(1, 3)),
    DatabaseProbe("two-1", cron=EVERY_TWO, lasts=0.7, timeout=5),
    DatabaseProbe("two-2", cron=None, every=2, lasts=0.3),
    DatabaseProbe("slow-1", cron=EVERY_TWO, lasts=2.5),
    DatabaseProbe("first-1", lasts=1.5, overlap="buffer_one"),
    DatabaseProbe("line-1", cron=EVERY_TWO, lasts=1.0, overlap="buffer_all"),
    DatabaseProbe("newest-1", cron=EVERY_TWO, lasts=2.5, overlap="cancel_other"),
    DatabaseProbe("newest-2", cron=EVERY_TWO, lasts=2.5, overlap="terminate_other"),
    DatabaseProbe("again-1", fails_first=True, attempts=3),
    DatabaseProbe("again-2", cron=EVERY_TWO, fails_first=True, attempts=2, overlap="allow"),
)

VICTIM = DatabaseProbe("victim")
EDITED = replace(VICTIM, cron=EVERY_TWO)
"""Jobs that the load pauses, resumes, edits and deletes, and the edited definition."""


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines that probes have written to this file so far, without an incomplete one."""
    return lines_from(file, 0)[0]


def lines_from(file: Path, place: int) -> tuple[list[dict[str, Any]], int]:
    """Return the same from this byte on, and the place to continue from."""
    with file.open("rb") as lines:
        lines.seek(place)
        whole, end, _ = lines.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()], place + len(whole) + len(end)
