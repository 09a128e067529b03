"""The states of a run and their transitions, as one literal table.

    PENDING  → RUNNING | SKIPPED | MISSED | COALESCED | CANCELLED | FAILED
    RUNNING  → SUCCEEDED | FAILED | RETRYING | CANCELLED | PENDING (given back unstarted)
    RETRYING → RUNNING | FAILED | CANCELLED

A pair that isn't in the table is a bug. Terminal states never change (S12): a redrive is a new
run. A run that its worker gave back returns to its earlier state: PENDING before its first counted
attempt, RETRYING after it.
"""

from enum import StrEnum


class State(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"
    COALESCED = "COALESCED"


class Reason(StrEnum):
    """Why a run is in its state, or why it waits."""

    # Never started.
    OVERLAP = "OVERLAP"
    BUFFER_FULL = "BUFFER_FULL"
    CALENDAR = "CALENDAR"
    PAUSED = "PAUSED"
    WINDOW = "WINDOW"
    CATCH_UP_NONE = "CATCH_UP_NONE"
    START_DEADLINE = "START_DEADLINE"
    EDITED = "EDITED"
    AFTER = "AFTER"
    # Failed.
    EXIT_CODE = "EXIT_CODE"
    SIGNAL = "SIGNAL"
    HTTP_STATUS = "HTTP_STATUS"
    GRPC_STATUS = "GRPC_STATUS"
    EXCEPTION = "EXCEPTION"
    TIMEOUT = "TIMEOUT"
    HEARTBEAT_TIMEOUT = "HEARTBEAT_TIMEOUT"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    WORKER_LOST = "WORKER_LOST"
    TOO_MANY_LOSSES = "TOO_MANY_LOSSES"
    DONT_RETRY = "DONT_RETRY"
    CHILDREN_FAILED = "CHILDREN_FAILED"
    # Cancelled.
    BY_USER = "BY_USER"
    BY_OVERLAP = "BY_OVERLAP"
    DELETED = "DELETED"
    # Waiting.
    NO_WORKER = "NO_WORKER"
    NO_SLOT = "NO_SLOT"
    POOL_FULL = "POOL_FULL"
    OVERLAP_BUFFERED = "OVERLAP_BUFFERED"
    PRE_DISPATCHED = "PRE_DISPATCHED"


NEVER_RAN = frozenset({State.SKIPPED, State.MISSED, State.COALESCED})
"""States of rows for scheduled times that didn't run."""

TRANSITIONS: dict[State, frozenset[State]] = {
    **dict.fromkeys(State, frozenset()),
    State.PENDING: NEVER_RAN.union((State.RUNNING, State.CANCELLED, State.FAILED)),
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.FAILED, State.RETRYING, State.CANCELLED, State.PENDING}
    ),
    State.RETRYING: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
}

LIVE = frozenset(state for state, after in TRANSITIONS.items() if after)
"""States of runs that haven't ended."""

TERMINAL = frozenset(TRANSITIONS) - LIVE


class IllegalTransition(Exception):
    """A pair of states that isn't in the table: a bug."""


def check(before: State, after: State) -> State:
    """Return `after` if a run may change from `before` to it. Raises IllegalTransition."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(
            f"a run can't change its state from {before} to {after} (a bug of schedd: please"
            " report this message)"
        )
    return after
