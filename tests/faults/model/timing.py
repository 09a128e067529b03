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
SPOOL_WITHIN = 10 * SECOND
"""How long an earlier incarnation lives on for the results in its spool."""


def instant(number: int) -> int:
    """When an instant is."""
    return number * PERIOD
