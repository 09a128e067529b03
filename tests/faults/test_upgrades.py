"""From one version to the next and back, under load: schema, members, workers, users."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

import pytest

from faults.commands import Commands, commanding
from faults.conftest import FaultRun
from faults.nemesis.cuts import cut
from faults.nemesis.processes import asked_to_end
from faults.scenario import Run
from faults.users import calling
from faults.witness import behind, latest
from faults.world import daemons
from faults.world.service import Service
from faults.world.world import TTL, World
from support import golden
from support.version_before import HERE, Code
from support.wait import wait_until

ON_TIME = 1.0
"""By which a hand-over may make a run late, beside those of shards that stay where they are."""
QUIET = 3.0
INSTALLED_IN = 1.0
"""Seconds that a daemon is away while its new version is laid in its place."""
LED_FOR = 2.0
"""Seconds for which a new leader is looked at."""
LONG = 28.0
"""Seconds of a run that is cancelled: a stream that falls silent is given up after 15 s at most."""
NEWER = "the schema is newer than this schedd"
TROUBLE = re.compile(
    r"UNIMPLEMENTED|DecodeError|Error parsing|ParseError|SchemaMismatch|Traceback|KeyError"
    r"|AttributeError|TypeError|ValueError|UndefinedColumn|UndefinedTable"
)
"""Log line of a daemon about a message, a row or a call that it doesn't know."""
CANCELED = re.compile(
    r"Traceback [^\n]+\n  File [^\n]+_schedule_rpc_coro\nasyncio\.exceptions\.CancelledError\n"
)
"""Log lines of the version before about a call that its stop canceled."""

IN_HANDS = """
SELECT t.member, r.worker, r.state FROM runs r
JOIN shards s ON s.id = r.shard JOIN tenures t ON t.id = s.owner
WHERE r.run_id = %s::uuid
"""


@pytest.mark.full
def test_rolling_upgrade(upgrade_run: FaultRun) -> None:
    """Schema, members and workers go to this version, one at a time; all go back to the one before
    on the schema of this one; a member and a worker go forward again. Users and `schedctl` of both
    versions call all the time.
    """
    with upgrade_run() as run:
        world, before = run.world, run.world.code
        assert golden.written_by(before) == golden.FILE.read_bytes(), "the golden file is another's"
        marks = {daemon.name: daemon.mark() for daemon in _daemons(world)}
        with calling(run, before) as sdk, commanding(world, (before, HERE)) as commands:
            assert sdk.is_relative_to(before.python.parents[2] / "tree"), f"the SDK is {sdk}"
            schema = _migrate_to(world, HERE)
            run.figures["schema"] = f"{schema[0]} → {schema[1]}"
            hands = Hands(run)
            members, workers = [*world.members.values()], [*world.workers.values()]

            hands.give(members[:1], HERE)
            _cancel_over_a_hop(run, members[:1])  # from this version by way of the one before
            _lead(run, commands, before, members[0])
            hands.give(members[1:2], HERE)
            _cancel_over_a_hop(run, members[2:])  # and the other way
            _lead(run, commands, HERE, members[2])
            hands.give([*members[2:], *workers], HERE)
            run.between_faults(QUIET)

            hands.give([*workers, *members], before)
            assert _migrate_to(world, before) == (schema[1], schema[1]), "nothing goes back"
            tolerant = [m.name for m in members if NEWER in m.said_since(marks[m.name])]
            assert tolerant == [m.name for m in members if schema[0] != schema[1]]
            run.between_faults(QUIET)

            hands.give([members[0], workers[0]], HERE)
        late, slowed = hands.late(latest), hands.late(behind)
        run.figures |= {
            "latest_s": max(late.values()),
            "handed_over_s": max(slowed.values()),
            "schedctl": commands.done.total(),
        }
    troubles = [line for daemon in _daemons(world) for line in _troubles(daemon, marks)]
    assert not troubles, "\n".join(troubles[:12])
    assert max(slowed.values()) <= ON_TIME, f"behind those due with them: {slowed}"
    assert max(late.values()) < TTL, f"as late as without a handover: {late}"


class Hands:
    """Replace daemons with another version, one at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._swaps: list[tuple[str, float, float]] = []

    def give(self, these: Iterable[Service], code: Code) -> None:
        """This version to each of these, when the one before it is back."""
        for daemon in these:
            began = time.time()
            with asked_to_end(self._run.journal, daemon):
                daemons.give(daemon, code)
                self._run.wait(INSTALLED_IN)
            self._run.world.await_ready(20)
            assert code.runs(daemon.pid), f"{daemon.name} isn't of {code.name}"
            self._swaps.append((f"{daemon.name} to {code.name}", began, time.time()))

    def late(self, by: Callable[[Run, float, float], float]) -> dict[str, float]:
        """Of each exchange, how late runs were that were due meanwhile."""
        self._run.wait(ON_TIME)  # so that what fell due last has begun
        return {swap: round(by(self._run, *window), 2) for swap, *window in self._swaps}


def _daemons(world: World) -> list[Service]:
    return [*world.members.values(), *world.workers.values()]


def _migrate_to(world: World, code: Code) -> tuple[str, str]:
    """The schema's revision before and after this version's `schedd migrate`."""
    member = next(iter(world.members.values()))
    was, argv = _revision(world), member.argv
    daemons.give(member, code)
    daemons.migrate(member)
    member.argv = argv
    return was, _revision(world)


def _revision(world: World) -> str:
    [(revision,)] = world.postgres.sql("SELECT version_num FROM alembic_version")
    return str(revision)


def _cancel_over_a_hop(run: Run, members: Collection[Service]) -> None:
    """A run whose owner, one of these, has lost sight of its worker is cancelled by way of others:
    who asks, asks the owner alone, and the run would last longer than the cut.
    """
    world = run.world
    run_id, owner, worker = _long_run_of(run, members)
    ours, theirs = world.members[owner].host, world.workers[worker].host
    with cut(run.journal, world.network, [ours], [theirs]):
        run.crew.cancel(run_id, at=daemons.address(ours))
        wait_until(
            lambda: _in_hands(world, run_id)[2] == "CANCELLED",
            LONG - 5,
            f"{owner} to have the run of {worker} cancelled by a member that reaches it",
        )
    world.await_ready(30)


def _long_run_of(run: Run, members: Collection[Service]) -> tuple[str, str, str]:
    """A run that has just begun, its owner (one of these), its worker: shards fall as they fall."""
    for _ in range(30):
        run_id = run.crew.submit(lasts=LONG)
        assert run_id is not None, "no answer though nothing is away"
        begun = partial(_in_hands, run.world, run_id)
        wait_until(lambda begun=begun: begun()[2] == "RUNNING", 10, "the run to begin")
        owner, worker, _ = begun()
        if owner in {member.name for member in members}:
            return run_id, owner, worker
        run.crew.cancel(run_id)
    raise AssertionError("thirty runs, and none fell to one of these members")


def _in_hands(world: World, run_id: str) -> tuple[str, str, str]:
    [(owner, worker, state)] = world.postgres.sql(IN_HANDS, run_id)
    return owner, worker, state


def _lead(run: Run, commands: Commands, code: Code, member: Service) -> None:
    """Make this member leader, with this version's `schedctl`."""
    with run.journal.fault("transfer-leader", member.name) as fault:
        if run.world.leader() != member.name:
            commands.call(code, "cluster", "transfer-leader", member.name)
        fault.effect_of(lambda: run.world.leader() == member.name, 20, "it leads")
        run.wait(LED_FOR)


def _troubles(daemon: Service, marks: dict[str, int]) -> Iterable[str]:
    for line in CANCELED.sub("", daemon.said_since(marks[daemon.name])).splitlines():
        if TROUBLE.search(line):
            yield f"{daemon.name}: {line[:300]}"
