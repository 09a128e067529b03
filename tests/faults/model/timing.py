"""Times of the model, in steps; 150 of them are a second."""

SECOND = 150
LOCK_TIMEOUT = 2 * SECOND
IDLE_IN_TRANSACTION = 2 * SECOND
START_WITHIN = 5 * SECOND
"""From assignment to `start_by`."""
WORKER_TTL = 6 * SECOND
PERIOD = 4 * SECOND
"""Between two instants of a job."""
HORIZON = 3 * SECOND
"""How early a run may be inserted, by the database's clock."""
TRIGGERED = 1_000_000
"""Triggered runs have numbers from here on; scheduled ones have their instant's."""
JOINED = 2 * TRIGGERED
"""Of a chain's child: its run of a cycle, which is an instant, has that one's from here on."""
AGAIN = 3 * TRIGGERED
"""And what does a run of a cycle again."""
SPOOL_WITHIN = 10 * SECOND
"""How long an earlier incarnation lives on for the results in its spool."""

MARK_EVERY = SECOND
DOUBT = 4 * SECOND
"""How far apart two marks are at most while anybody acts: so long after the newest one that etcd
remembers, the lost database may have gone on.
"""
TRUST = 2 * SECOND
"""A process that has read nothing for so long has no trust left in its lease."""
TOLERATED = 7 * SECOND
"""Loss of a failover that needs no decision of a person: more than `DOUBT` and `TRUST`."""


def instant(number: int) -> int:
    """When an instant is."""
    return number * PERIOD


def has(thin: bool, number: int) -> bool:
    """Whether a schedule has this instant: a thin one lacks every other."""
    return not thin or number % 2 == 0


def following(thin: bool, number: int) -> int:
    """The next one that it has."""
    return number + 1 + (not has(thin, number + 1))


def due_at(number: int) -> int:
    """Before when a run doesn't start; 0: it has no instant of its own."""
    return instant(number) if number < TRIGGERED else 0


def cycle_of(number: int) -> int:
    """Of which cycle a run is; 0: of none that others share."""
    return 0 if TRIGGERED <= number < JOINED else number % TRIGGERED
