"""Weather of a seed: which faults it has and how often, how busy its users are, how slow
its frames.

Half of the seeds draw all of it. The other half are worlds in which one rule matters most
(`HARSH`): what few rules hold against is seldom met by chance. A search without a rule draws that
rule's own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum, auto

from faults.model.rules import MEANINGS, Rule
from faults.model.timing import HORIZON, PERIOD, SECOND


class Fault(Enum):
    """A kind of fault; the nemesis knows how to do it."""

    DROP_LEASE = auto()
    FENCE = auto()
    CRASH = auto()
    STOP_MEMBER = auto()
    STOP_WORKER = auto()
    RESTART_WORKER = auto()
    DRAIN = auto()
    PROMOTE = auto()
    RESTORE = auto()
    RESTORE_ETCD = auto()
    SKEW = auto()
    REATTACH = auto()
    RAISE_TERM = auto()


F = Fault
RATES = {
    F.DROP_LEASE: 1.0,
    F.FENCE: 1.0,
    F.CRASH: 0.7,
    F.STOP_MEMBER: 1.5,
    F.STOP_WORKER: 2.0,
    F.RESTART_WORKER: 3.0,
    F.DRAIN: 1.0,
    F.PROMOTE: 1.0,
    F.RESTORE: 0.7,
    F.RESTORE_ETCD: 0.6,
    F.SKEW: 1.0,
    F.REATTACH: 2.0,
    F.RAISE_TERM: 1.0,
}
"""How often one is met beside the others."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances are for each step of the process concerned."""

    faults: dict[Fault, float]
    faulty: float
    """Chance of a fault."""
    calls: float
    """Chance of a call."""
    brisk: float
    """Chance that an execution ends."""
    carried: float
    """Chance that a frame is carried."""
    loss: float
    """Chance that a frame is lost, and that it comes twice."""
    sleepy: float
    """Chance that a process falls asleep after its turn."""
    skew: int
    """How wrong the clock of a member is when it comes."""
    late_commits: float
    lost_commits: float
    stray: float = 0.0
    """Chance that a frame is sent again when the database has gone back."""
    ahead: int = 0
    """How long before they are due runs are made, and dispatched."""
    jobs: int = 2
    """Of each kind; of few each has much of the owners' time."""
    asked: tuple[int, ...] = (4, 1, 1, 4, 3, 2)
    """How often each of `calls.CALLS` is, beside the others."""
    unsure: int = 0
    """By how much a worker's two readings of the time are off at most, either way."""


def drawn(rng: random.Random) -> Weather:
    """Any weather."""
    share = rng.choice((0.15, 0.3, 0.6, 1.0))
    late, lost = rng.choice(((0.0, 0.0), (0.03, 0.02), (0.12, 0.06)))
    return Weather(
        faults={
            fault: rate * rng.choice((0.5, 1, 3))
            for fault, rate in RATES.items()
            if rng.random() < share
        },
        faulty=rng.choice((0.005, 0.02, 0.06, 0.12)),
        calls=rng.choice((0.0, 0.006, 0.02, 0.05)),
        brisk=rng.choice((0.1, 0.02)),
        carried=rng.choice((0.7, 0.7, 0.25, 0.1)),
        loss=rng.choice((0.0, 0.05, 0.2)),
        sleepy=rng.choice((0.0, 0.002, 0.01)),
        skew=rng.choice((0, 0, HORIZON, 3 * PERIOD)),
        late_commits=late,
        lost_commits=lost,
        ahead=rng.choice((0, SECOND, HORIZON)),
        unsure=rng.choice((0, SECOND // 2)),
    )


FAIR = Weather({}, 0.05, 0.006, 0.05, 0.7, 0.05, 0.0, 0, 0.01, 0.01)


def _harsh(*faults: Fault, **changes: float) -> Weather:
    return replace(FAIR, faults=dict.fromkeys(faults, 1.0), **changes)  # type: ignore[arg-type] # the fields are floats


BUSY = _harsh(calls=0.08, carried=0.25)
REBORN = _harsh(F.RESTART_WORKER, carried=0.3, loss=0.25, brisk=0.01, faulty=0.1)
FORGETFUL = _harsh(F.RESTART_WORKER, F.RESTORE_ETCD, F.CRASH, brisk=0.01, faulty=0.15)
EARLY = replace(BUSY, skew=HORIZON, carried=0.7)
PRE_DISPATCHED = _harsh(calls=0.04, brisk=0.3, ahead=HORIZON, jobs=1)
PAUSED = replace(PRE_DISPATCHED, calls=0.08, asked=(2, 1, 0, 0, 0, 0))
REDONE = replace(PRE_DISPATCHED, calls=0.05, asked=(0, 0, 0, 1, 0, 0))
RESTORED = _harsh(F.RESTORE, calls=0.02, faulty=0.02)
REPEATED = _harsh(F.RESTORE, F.DRAIN, stray=0.5, brisk=0.1, calls=0.05, faulty=0.03)

HARSH: dict[Rule, Weather] = {
    Rule.TOKENS_UNDER_LOCK: _harsh(sleepy=0.02),
    Rule.TIMELINE: _harsh(F.PROMOTE, F.STOP_MEMBER, F.FENCE, faulty=0.12, sleepy=0.01),
    Rule.MOVE_CLOCK_FLOOR: replace(BUSY, faults={F.PROMOTE: 1.0}),
    Rule.MOVE_RAISES_EPOCH: BUSY,
    Rule.SHARD_FROM_TIMER: BUSY,
    Rule.CALLS_LOCK_SHARD: replace(BUSY, sleepy=0.005),
    Rule.UNIQUE_INSTANT: EARLY,
    Rule.EARLY_ROWS_KEPT: PAUSED,
    Rule.TURN_OF_NEW_ROWS: EARLY,
    Rule.OVERLAP_WHEN_DUE: PRE_DISPATCHED,
    Rule.PRE_DISPATCHED_IN_TURN: replace(PRE_DISPATCHED, sleepy=0.01),
    Rule.PAUSED_WHEN_BACK: PAUSED,
    Rule.EDITED_AWAY: REDONE,
    Rule.EDITED_WHEN_DUE: REDONE,
    Rule.EDIT_ENDS_WHAT_WAS_DUE: replace(REDONE, calls=0.08, asked=(1, 1, 1, 9, 0, 0)),
    Rule.NOT_BEFORE: PRE_DISPATCHED,
    Rule.LOWER_BOUND: replace(PRE_DISPATCHED, unsure=SECOND // 2),
    Rule.START_BY_FROM_INSTANT: replace(
        PRE_DISPATCHED,
        faults={F.STOP_WORKER: 1.0},
        faulty=0.1,
        calls=0.05,
        asked=(2, 1, 1, 0, 0, 1),
    ),
    Rule.BACK_AS_FRESH: PAUSED,
    Rule.LOST_WAITS: replace(
        PRE_DISPATCHED, faults={F.DROP_LEASE: 1.0}, faulty=0.1, carried=1.0, loss=0.0, calls=0.0
    ),
    Rule.TURN_COMPARED: replace(BUSY, sleepy=0.01),
    Rule.DATABASE_CLOCK: replace(FAIR, skew=3 * PERIOD),
    Rule.INSERT_LOCKS_TIMER: BUSY,
    Rule.DELETE_LOCKS_RUNS: replace(
        BUSY, faults={F.DRAIN: 1.0}, brisk=0.3, carried=0.7, faulty=0.1, asked=(0, 0, 0, 0, 0, 1)
    ),
    Rule.OK_ONE_TIMELINE: _harsh(F.PROMOTE, F.STOP_WORKER, calls=0.08, carried=0.25),
    Rule.OK_ASKS_ENDED: _harsh(F.STOP_WORKER, F.DROP_LEASE, calls=0.08, faulty=0.15),
    Rule.JUDGED_AT_START: _harsh(F.STOP_WORKER, calls=0.08, sleepy=0.01),
    Rule.RESEND_KEEPS_START_BY: _harsh(F.REATTACH, carried=0.1, calls=0.03),
    Rule.INCARNATION_NAMED: REBORN,
    Rule.REFUSAL_OF_ITS_OWN: REBORN,
    Rule.REFUSAL_FINAL: _harsh(F.DRAIN, carried=0.2, loss=0.25, calls=0.05),
    Rule.HEARTBEAT_STAMPED: _harsh(F.STOP_MEMBER, carried=0.3, brisk=0.01, faulty=0.1),
    Rule.HEARTBEAT_LISTS_SPOOL: _harsh(carried=0.3, loss=0.25, brisk=0.1),
    Rule.LIST_AFTER_ROWS: replace(REBORN, carried=0.7),
    Rule.RESTORE_WAITS: FORGETFUL,
    Rule.DELETION_WATCHED: FORGETFUL,
    Rule.LEFTOVERS_KILLED: replace(REBORN, carried=0.7),
    Rule.AT_MOST_ONCE_LOSS: replace(REBORN, carried=0.7),
    Rule.AT_MOST_ONCE_RETURNED: _harsh(F.DRAIN, brisk=0.02),
    Rule.LOOK_BEFORE_MAP: RESTORED,
    Rule.MARK_COMMITTED_FIRST: RESTORED,
    Rule.CONNECTION_LOOKED_AT: RESTORED,
    Rule.HOLD_FROM_MARK: RESTORED,
    Rule.WORKERS_WRITTEN_OFF: RESTORED,
    Rule.BACK_NOT_OF_LOST: RESTORED,
    Rule.REFUSAL_DOUBTED: REPEATED,
    Rule.DOUBTFUL_ENDED: RESTORED,
    Rule.REPORT_DOUBTED: REPEATED,
    Rule.REPORTS_WAITED_FOR: replace(REPEATED, sleepy=0.008),
    Rule.ONCE_NOT_CAUGHT_UP: RESTORED,
    Rule.ONCE_LATE_NEITHER: RESTORED,
}


RARE = {
    Rule.REFUSAL_DOUBTED,
    Rule.REPORT_DOUBTED,
    Rule.REPORTS_WAITED_FOR,
    Rule.PRE_DISPATCHED_IN_TURN,
    Rule.PAUSED_WHEN_BACK,
    Rule.EDITED_AWAY,
    Rule.EDITED_WHEN_DUE,
    Rule.EDIT_ENDS_WHAT_WAS_DUE,
    Rule.START_BY_FROM_INSTANT,
    Rule.BACK_AS_FRESH,
    Rule.LOST_WAITS,
}
"""Rules that show only in their own weather, with many seeds."""


def weather_of(rng: random.Random, without: frozenset[Rule]) -> Weather:
    """Return the weather of a seed."""
    narrow = [rule for rule in without if MEANINGS[rule].beside or rule in RARE]
    if narrow:
        return HARSH[narrow[0]]
    harsh = [HARSH[rule] for rule in sorted(without) if rule in HARSH] or list(HARSH.values())
    return rng.choice((drawn(rng), rng.choice(harsh)))
