"""Fault run in a world: set up, quiet, fault, heal, quiet, drain, dump, check.

    run = Run(world, "leader killed", directory, seed=7)
    with run:
        with killed(run.journal, world.members[leader]):
            run.wait(6)
    verdict = run.judge()

            jobs made      ┌─ quiet ─┐ fault window ┌ healing: at most F + G ┐ quiet ┌ drain  ┐ dump
    ────────┴──────────────┴─────────┴──────────────┴────────────────────────┴───────┴────────┴────▶

- Jobs of a run have its prefix and are deleted at its end, so runs in one world don't mix.
- The second quiet time begins when all is ready and each each-second job has run on time again, and
  at the latest F + G after healing, whether or not: what is late then is the system's failure.
- `Run` leaves its directory behind, whatever happens; its caller removes it.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults import dump, resources
from faults.crew import Crew
from faults.history import Meta, Recorder, Resource
from faults.leftovers import leftovers
from faults.load import Load
from faults.nemesis.journal import Journal
from faults.probes import MIX, DatabaseProbe, lines_from, lines_of
from faults.stalls import watched
from faults.world.world import World
from support.wait import wait_until

MARGIN = 2.5
"""Seconds from the last instant that is judged to the end of the record, at least."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `failover` (F): lease, election, takeover. `grace` (G): catching up. `least`: from
    the first quiet to the last.
    """

    first_quiet: float = 5.0
    second_quiet: float = 4.0
    failover: float = 5.0
    grace: float = 4.0
    drain: float = 30.0
    least: float = 20.0


class Run:
    """Fault run. As a context manager it makes jobs and load, and ends them; faults go inside.

    `directory`: where its history lies. `command`: the line that repeats it. `faketime`: whose
    clock is moved, and how. `prepare`: makes jobs that are there when the record begins: they have
    the run's prefix, and it tells the recorder of each.
    """

    def __init__(
        self,
        world: World,
        scenario: str,
        directory: Path,
        *,
        seed: int = 0,
        mix: Sequence[DatabaseProbe] = MIX,
        timings: Timings | None = None,
        command: str = "",
        load: bool = True,
        faketime: str | None = None,
        prepare: Callable[[Run], None] | None = None,
    ) -> None:
        self.world = world
        self.scenario = scenario
        self.seed = seed
        self.timings = timings or Timings()
        self.command = command
        self.faketime = faketime
        self.recorder = Recorder(directory)
        self.directory = directory
        self.journal = Journal(self.recorder)
        self.prefix = prefix = f"r{int(time.time() * 10) % 10**9}"
        self.mix = [replace(probe, name=f"{prefix}-{probe.name}") for probe in mix]
        self.began = time.time()
        self.quiet: list[tuple[float, float]] = []
        self.figures: dict[str, Any] = {}
        self._healing_recorded = 0.0
        self._starts: list[dict[str, Any]] = []
        self._read: dict[Path, int] = {}
        """Bytes of each probe's file that were read."""
        ops = itertools.count(1)
        self._prepare = prepare
        self._since = self.began
        """When its first job was made, at the earliest."""
        self.probes = directory / "probes"
        self.probes.chmod(0o777)
        self.crew = Crew(world, self.recorder, ops, self.probes, prefix)
        self._load = (
            Load(world.endpoints, self.recorder, ops, self.probes, seed, prefix) if load else None
        )
        self._log_sizes = {s.name: s.mark() for s in world.services()}
        self._beside = ExitStack()
        self._before: list[Resource] = []
        self._after: list[Resource] = []
        self._restarts = len(world.supervisor.restarted)
        self._at_end: list[Callable[[], None]] = []

    def wait(self, seconds: float) -> None:
        """Let time pass: the length of a fault is the subject here."""
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 1, "the time to pass")

    def at_end(self, check: Callable[[], None]) -> None:
        """Ask this, which raises AssertionError, when all has healed and the last quiet is over."""
        self._at_end.append(check)

    def keep_commits(self) -> None:
        """Write down what was committed so far; a long run does so now and then."""
        self.recorder.commits(self.world.commits.absorb())

    def between_faults(self, seconds: float) -> None:
        """Wait for healing, and then be quiet for so long: a run may have many faults."""
        self._heal()
        self._be_quiet(max(seconds, self._time_left() + seconds))
        resources.record(self.world, self.recorder, "during")
        self.keep_commits()

    def starts(self) -> list[dict[str, Any]]:
        """All starts that the probes have written so far; of each worker in their order."""
        for file in self.probes.glob("*.jsonl"):
            lines, self._read[file] = lines_from(file, self._read.get(file, 0))
            self._starts += (line for line in lines if line["event"] == "start")
        return [*self._starts]

    def add_figures(self, **figures: Any) -> None:
        """Keep these beside the figures that there are, for docs/evidence."""
        self.figures |= figures
        (self.directory / "figures.json").write_text(json.dumps(self.figures) + "\n")

    def running_on(self, worker: str) -> set[str]:
        """The probes, by their names in the mix, that this worker has begun and not ended."""
        file = self.recorder.probe_file(worker)
        seen = lines_of(file) if file.exists() else []
        ended = {(line["run"], line["token"]) for line in seen if line["event"] == "end"}
        begun = (line for line in seen if (line["run"], line["token"]) not in ended)
        return {line["job"].removeprefix(f"{self.prefix}-") for line in begun}

    def worker_with(self, *probes: str) -> str:
        """The worker that has begun all of these and not ended them, as soon as there is one: to
        run is dispatched can't be chosen.
        """

        def found() -> str:
            fit = (name for name in self.world.workers if {*probes} <= self.running_on(name))
            return next(fit, "")

        return wait_until(found, 30, f"a worker to run {' and '.join(probes)}")

    @contextmanager
    def quiet_throughout(self) -> Iterator[None]:
        """Nothing goes wrong in this block: what falls due there has to run within a second."""
        began = time.time()
        yield
        self.quiet.append((began, time.time()))

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _begin(self) -> None:
        self._beside.enter_context(watched(self.recorder))
        if self._prepare is not None:
            self._prepare(self)
        self.world.commits.absorb()
        dump.dump_initial(self.world.postgres, self.recorder, self.prefix)
        self.began = time.time()
        self._write_meta()
        self.crew.create_all(self.mix)
        if self._load is not None:
            self._load.begin()
        self._await_on_time(time.time(), 20)
        self._before = resources.record(self.world, self.recorder, "before")
        self._be_quiet(self.timings.first_quiet)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as closing:
            closing.callback(self._beside.close)
            closing.callback(self._keep_logs)
            closing.callback(self._write_meta)
            closing.callback(self.crew.close)
            closing.callback(self._finish)  # last made, first done, even if nothing heals
            if kind is None:
                self._heal()
                self._be_quiet(
                    max(self.timings.second_quiet, self._time_left(), self._lacking_length())
                )
                for check in self._at_end:
                    check()

    def _time_left(self) -> float:
        """Seconds until what fell due in the last fault must have run, whatever happened."""
        healed = self.journal.healed or self.began
        return healed + self.timings.failover + self.timings.grace - time.time()

    def _lacking_length(self) -> float:
        """Seconds until enough instants have passed for the run to prove something."""
        return self.quiet[0][0] + self.timings.least - time.time()

    def _heal(self) -> None:
        healed = self.journal.healed or time.time()
        latest = healed + self.timings.failover + self.timings.grace
        self.world.await_ready(max(1.0, latest - time.time()))
        self._await_on_time(healed, max(0.1, latest - time.time()), must=False)
        if healed != self._healing_recorded:  # it may be waited for again when all is well
            self.figures["healing_s"] = round(time.time() - healed, 1)
            self._healing_recorded = healed

    def _finish(self) -> None:
        with ExitStack() as closing:  # the last comes first; each is done, whatever others come to
            closing.callback(self._know_what_was_held)
            closing.callback(self._dump)
            closing.callback(self.keep_commits)
            closing.callback(
                lambda: self.recorder.leftovers(leftovers(self.world, self._restarted()))
            )
            closing.callback(self._record_after)
            if self._load is not None:
                self._load.end()
            self.crew.delete_all()
            wait_until(self._all_ended, self.timings.drain, "all runs to end and spools to empty")
            last = self.quiet[-1][1] if self.quiet else self.began
            self.wait(max(0.0, last + MARGIN - time.time()))

    def _record_after(self) -> None:
        self._after = resources.record(self.world, self.recorder, "after")
        self.figures["held"] = resources.held(self._before, self._after)

    def _dump(self) -> None:
        clock = self.world.clock
        began = clock.at(self._since) if clock else self._since
        dump.dump_tables(self.world.postgres, self.recorder.final, began - 1.0)

    def _know_what_was_held(self) -> None:
        gone = {each.who for each in self._before} - {each.who for each in self._after}
        assert not gone, f"what {', '.join(sorted(gone))} held is not known, for it doesn't run"

    def _restarted(self) -> list[str]:
        return [name for _, name in self.world.supervisor.restarted[self._restarts :]]

    def _all_ended(self) -> bool:
        [(live,)] = self.world.postgres.sql("SELECT count(*) FROM live")
        if live:
            return False
        spools = (self.world.work / name for name in self.world.workers)
        return not any(file for spool in spools for file in spool.glob("*.results"))

    def _be_quiet(self, seconds: float) -> None:
        began = time.time()
        self.wait(seconds)
        self.quiet.append((began, time.time()))

    def _await_on_time(self, since: float, timeout: float, *, must: bool = True) -> None:
        """Wait until each each-second job has run on time for an instant after `since`; of those
        that last longer than a second, overlap says when they start.
        """
        wanted = {
            probe.name for probe in self.mix if probe.cron == "* * * * * *" and probe.lasts < 1
        }

        def all_ran() -> bool:
            seen = {
                line["job"]
                for line in self.starts()
                if line["at"] > since and line["at"] - _instant(line["nominal"]) < 1.0
            }
            return wanted <= seen

        try:
            wait_until(all_ran, timeout, "each job to have run on time", every=0.2)
        except AssertionError:
            if must:
                raise

    def _write_meta(self) -> None:
        self.recorder.meta(
            Meta(
                scenario=self.scenario,
                seed=self.seed,
                began=self.began,
                ended=time.time(),
                member_ttl=self.world.ttl,
                worker_ttl=self.world.ttl,
                failover=self.timings.failover,
                grace=self.timings.grace,
                quiet=tuple(self.quiet),
                command=self.command,
                commit=dump.commit_of_tree(),
                faketime=self.faketime,
                legs=tuple(self.world.clock.legs) if self.world.clock else (),
            )
        )

    def _keep_logs(self) -> None:
        for service in self.world.services():
            said = service.said_since(self._log_sizes.get(service.name, 0))
            self.recorder.log(service.name).write_text(said)
        self.add_figures(restarts=len(self._restarted()))


def _instant(nominal: str) -> float:
    return datetime.fromisoformat(nominal).timestamp()
