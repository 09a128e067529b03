"""The trials of mutants: a small world, and the shortest fault that shows what is missing.

Each is an ordinary run (`faults/scenario.py`): jobs, quiet, fault, heal, quiet, drain, dump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from faults.day import DAYS, JOBS, Day, await_day, live_through
from faults.day import TIMINGS as OF_A_DAY
from faults.history import Recorder
from faults.mutants.edits import Edit
from faults.nemesis.cuts import cut
from faults.nemesis.failpoints import killed_at, stopped_at
from faults.nemesis.journal import Journal
from faults.nemesis.processes import killed, stopped
from faults.nemesis.threads import hung_main_thread
from faults.probes import EVERY_TWO, MIX, DatabaseProbe
from faults.scenario import Run, Timings
from faults.world.world import TTL, World
from schedctl.dev.servers import postgres
from schedd.core.ids import SHARDS
from support.wait import wait_until

TIMINGS = Timings(first_quiet=3.0, second_quiet=3.0, drain=15.0, least=20.0)
HELD_UP = 8.0
"""Seconds that a worker is held up before its starts: past its trust and every `start_by`."""

HANDED_WITHIN = 1.2
"""Seconds in which an instant of each-second jobs comes, and their runs are dispatched."""

LONG = DatabaseProbe("long", cron=EVERY_TWO, lasts=8.0, overlap="allow")
WHILE = DatabaseProbe("while", lasts=1.5, overlap="allow")
MOST = DatabaseProbe("most-while", cron=EVERY_TWO, lasts=1.5, overlap="allow", at_most_once=True)


def nothing(_: World) -> None:
    """No preparation."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Trial: faults for a world. `setting`: edits for the product and the mutant alike.

    `points`: failpoints beside its own, of members; `hands`: those of worker w1.
    `prepare` is called when the cluster is up, before the run. `day`: its clock is set before
    it, and users do nothing but what the trial does.
    """

    name: str
    go: Callable[[Run, World], None]
    setting: Sequence[Edit] = ()
    mix: Sequence[DatabaseProbe] = MIX
    points: Mapping[str, str] = field(default_factory=dict)
    hands: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[World], None] = nothing
    day: Day | None = None
    timings: Timings = TIMINGS


def _no_faults(run: Run, _: World) -> None:
    run.wait(10)


def _leader_killed(run: Run, world: World) -> None:
    leader = str(world.leader())
    with killed(run.journal, world.members[leader]):
        world.await_leader(20, other_than=leader)
        run.wait(2)


def _members_killed(run: Run, world: World) -> None:
    """For longer than runs are created ahead: catch-up must find the times in between."""
    with ExitStack() as deaths:
        for member in world.members.values():
            deaths.enter_context(killed(run.journal, member))
        run.wait(8)


def _worker_killed(run: Run, world: World) -> None:
    with killed(run.journal, world.workers[run.worker_with("most-while")]):
        run.wait(TTL + 2)


def _worker_stopped(run: Run, world: World) -> None:
    with stopped(run.journal, world.workers[run.worker_with("long", "while")]):
        run.wait(TTL + 3)
    run.wait(4)


def _results_in_the_spool(run: Run, world: World) -> None:
    worker = world.workers[run.worker_with("while")]
    members = [member.host for member in world.members.values()]
    with ExitStack() as death:
        with cut(run.journal, world.network, [worker.host], members):
            wait_until(lambda: world.spooled(worker.name), 10, "results in the spool")
            run.wait(2)  # here and below: so that enough instants fall into each fault
            death.enter_context(killed(run.journal, worker))
        run.wait(1)


def _killed_before_storing(run: Run, world: World) -> None:
    with killed_at(run.journal, world, "accept.before_commit"):
        run.wait(TTL + 5)


def _commit_in_doubt(run: Run, world: World) -> None:
    with run.journal.fault("no answer to COMMIT at fire.mid_batch", "a member") as fault:
        ticket = world.tickets / "fire.mid_batch"
        ticket.touch()
        fault.effect_of(lambda: not ticket.exists(), 20, "the ticket to be taken")
        run.wait(2)


def _owner_asleep_in_transaction(run: Run, world: World) -> None:
    """Woken soon after its shards are another's: later that one, kept waiting by what the sleeper
    has written, would have had its transaction ended.
    """
    with stopped_at(run.journal, world, "fire.before_commit") as sleeper:
        wait_until(lambda: _all_owned_but_by(world, sleeper.name), 20, "its shards' takeover")
        run.wait(0.3)


def _all_owned_but_by(world: World, member: str) -> bool:
    owners = world.owners()
    return len(owners) == SHARDS and member not in owners.values()


def _loop_hung(run: Run, world: World) -> None:
    """Within its lease and a second others must have all that was its own, though it hangs on: from
    then on nothing is excused by it. So the fault that the checker knows of ends there.
    """
    leader = world.members[str(world.leader())]
    aside = Journal(Recorder(world.work / "aside"))
    with ExitStack() as hanging:
        with run.journal.fault("main thread hung", leader.name) as fault:
            hanging.enter_context(hung_main_thread(aside, leader))
            fault.took_effect(what="its main thread is traced")
            run.wait(TTL + 1)
        run.wait(run.timings.failover + run.timings.grace + 4)


def _held_up(run: Run, world: World) -> None:
    """Jobs are paused while a worker that has runs of theirs stands just before their start: it is
    held up at whatever it starts next, and handed those of a second meanwhile.
    """
    each_second = [probe for probe in run.mix if probe.cron == "* * * * * *"]
    with run.journal.fault("held up before its starts", "w1") as fault:
        ticket = world.tickets / "worker.before_start"
        ticket.touch()
        fault.effect_of(lambda: not ticket.exists(), 10, "w1 to be held up")
        run.wait(HANDED_WITHIN)
        run.crew.change_all("pause", each_second)
        run.wait(HELD_UP)
        run.crew.change_all("resume", each_second)


def _through(day: Day, name: str) -> Trial:
    """Live through a day on which clocks change."""
    return Trial(
        name,
        lambda run, world: live_through(run, world, *day.bounds()),
        mix=JOBS,
        prepare=lambda world: await_day(world, day),
        day=day,
        timings=OF_A_DAY,
    )


def _patient_database(world: World) -> None:
    """A process that sleeps inside a transaction isn't ended by the database."""
    role, limit = postgres.ROLE, "idle_in_transaction_session_timeout"
    world.postgres.sql(f"ALTER ROLE {role} SET {limit} = '60s'")
    world.postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role
    )
    world.await_ready(20)


FIRE = "schedd/timers/fire.py"
FIRING = "schedd/store/timers/fire.py"

UNGUARDED = (
    Edit(
        FIRING,
        "      AND t.due_at IS NOT DISTINCT FROM b.due_at AND t.fired = b.fired AND NOT t.paused\n",
        "      AND t.fired = b.fired AND NOT t.paused\n",
    ),
    Edit(
        FIRE,
        "        self._changed |= in_doubt  # their rows say whether they fired\n",
        "        self._run_index.timers.come_up(timers[job] for job in in_doubt)\n",
    ),
    Edit(
        "schedd/store/timers/fire_running.py",
        "      AND t.due_at IS NOT DISTINCT FROM d.due_at AND t.fired = 0 AND NOT t.paused\n",
        "      AND t.fired = 0 AND NOT t.paused\n",
    ),
)
"""A member without an answer to a COMMIT fires once more, unread, and the timer doesn't mind."""

UNAWARE = (
    Edit(
        "schedd/api/jobs/quiesce.py",
        "    services.wake_ups.jobs_changed([(stored.job_id, record.shard)])\n",
        "",
    ),
)
"""Owners don't receive pauses, edits and deletes: their memory stays as it was."""

TWICE = (
    Edit(
        "schedd/dispatch/workers/registry.py",
        "        attached.line.assign(batch, known)\n        return True\n",
        "        attached.line.assign(batch, known)\n"
        "        attached.line.assign(batch, known)\n        return True\n",
    ),
)
"""Every assignment is sent twice."""

SLOW_RELEASE = (
    Edit("schedd/cluster/shards.py", "import logging\n", "import asyncio\nimport logging\n"),
    Edit(
        "schedd/cluster/shards.py",
        "        await self._store.release(claim)\n",
        "        await asyncio.sleep(0.5)\n        await self._store.release(claim)\n",
    ),
)
"""Owners take their time to let go, so that takers have to wait."""

NO_FAULTS = Trial("no faults", _no_faults)
NO_FAULTS_UNAWARE = Trial("no faults, owners unaware of changes", _no_faults, setting=UNAWARE)
NO_FAULTS_SENT_TWICE = Trial("no faults, assignments sent twice", _no_faults, setting=TWICE)
LEADER_KILLED = Trial("leader killed", _leader_killed)
MEMBERS_KILLED = Trial("all members killed", _members_killed)
MOVED_SLOWLY = Trial("leader killed, releases slow", _leader_killed, setting=SLOW_RELEASE)
WORKER_KILLED = Trial("worker killed", _worker_killed, mix=(*MIX, MOST))
WORKER_STOPPED = Trial("worker stopped, results late", _worker_stopped, mix=(*MIX, LONG, WHILE))
SPOOLED = Trial("worker dies with results spooled", _results_in_the_spool, mix=(*MIX, WHILE))
BEFORE_STORING = Trial("member dies before storing results", _killed_before_storing)
IN_DOUBT = Trial(
    "COMMIT without answer, fired again",
    _commit_in_doubt,
    setting=UNGUARDED,
    points={"fire.mid_batch": "unknown"},
)
ASLEEP = Trial(
    "owner asleep in a transaction",
    _owner_asleep_in_transaction,
    prepare=_patient_database,
)
HUNG = Trial("main loop hung", _loop_hung)
FORWARD = _through(DAYS["new-york-forward"], "clocks go forward")
BACK = _through(DAYS["lord-howe-back"], "clocks go back")
HELD = Trial(
    "worker held up before starts",
    _held_up,
    hands={"worker.before_start": f"pause:{HELD_UP:g}"},
)
