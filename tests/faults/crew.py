"""The jobs of one run, made, changed and deleted by four users at once.

Every job of a run has its prefix, so its end can delete whatever of it still lives: the load's
jobs too, where a fault left one behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from faults.history import Recorder
from faults.load import Caller
from faults.probes import DatabaseProbe
from faults.world.world import World

T = TypeVar("T")

CALLERS = 4


class Crew:
    """Four users and the jobs they made; `ops`: numbers of calls, shared with the run's load."""

    def __init__(
        self, world: World, recorder: Recorder, ops: Iterator[int], probes: Path, prefix: str
    ) -> None:
        self._world = world
        self._ops = ops
        self._prefix = prefix
        self._recorder = recorder
        self._probes = probes
        self._callers = [Caller(world.endpoints, recorder, ops, probes) for _ in range(CALLERS)]
        self.job_ids: dict[str, str] = {}

    def create_all(self, mix: Sequence[DatabaseProbe]) -> None:
        """Make these jobs; each has to be answered."""

        def create(caller: Caller, probe: DatabaseProbe) -> None:
            job_id = caller.create(probe)
            assert job_id is not None, f"{probe.name} could not be made in a quiet cluster"
            self.job_ids[probe.name] = job_id

        self._spread(create, mix)

    def change_all(self, call: str, probes: Sequence[DatabaseProbe]) -> None:
        """Pause or resume these jobs; returns when all calls have been answered."""
        self._spread(
            lambda caller, probe: caller.change(call, probe.name, self.job_ids[probe.name]), probes
        )

    def submit(self, lasts: float = 0.0) -> str | None:
        """Submit one-time work; the run's id if it is known."""
        return self._callers[0].submit(f"{self._prefix}-{next(self._ops)}", lasts)

    def cancel(self, run_id: str, at: str = "") -> None:
        """End a run; `at`: by a call to this endpoint and no other."""
        if not at:
            self._callers[0].cancel(run_id)
            return
        caller = Caller([at], self._recorder, self._ops, self._probes)
        try:
            caller.cancel(run_id)
        finally:
            caller.close()

    def submit_for_later(self, number: int) -> list[str]:
        """Submit so much work that begins in an hour; its runs."""
        keys = [f"{self._prefix}-{next(self._ops)}-later" for _ in range(number)]
        made = [self._callers[0].submit(key, delay="1h") for key in keys]
        assert None not in made, "work could not be submitted in a quiet cluster"
        return [run for run in made if run is not None]

    def delete_all(self) -> None:
        """Delete whatever job of this run still lives."""
        living = self._world.postgres.sql(
            "SELECT name, job_id::text FROM jobs"
            f" WHERE deleted_at IS NULL AND name LIKE '{self._prefix}-%'"
        )

        def delete(caller: Caller, job: tuple[str, str]) -> None:
            for _ in range(5):
                if caller.change("delete", *job):
                    return

        self._spread(delete, living)

    def close(self) -> None:
        """End their connections."""
        for caller in self._callers:
            caller.close()

    def _spread(self, act: Callable[[Caller, T], object], subjects: Sequence[T]) -> None:
        """Do it for each of them, over all callers at once."""
        share = [subjects[at :: len(self._callers)] for at in range(len(self._callers))]

        def work(caller: Caller, subjects: Sequence[T]) -> None:
            for subject in subjects:
                act(caller, subject)

        with ThreadPoolExecutor(len(self._callers)) as pool:
            list(pool.map(work, self._callers, share))
