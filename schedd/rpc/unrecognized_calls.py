"""Calls of callers that this member hasn't authenticated before: started at a limited rate.

    accepted call ─▶ recognized? ─▶ started at once
                       no: queued ─▶ started in its turn (`limited_turns`)
                             ├ recognized meanwhile, or past its deadline: doesn't count
                             └ MOST are queued: the newest call of the host with most is rejected

A start costs the event loop some 0.3 ms. Without the queue, 8,000 calls with random tokens delay
all other calls by seconds.

Invariants
- A queued call has no task and no request in this process.
- At most MOST calls are queued. A host that fills the queue displaces its own calls first. A call
  that its caller cancels keeps its place: grpcio reports a cancellation to started calls only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schedd.rpc.limited_turns import LimitedTurns
from schedd.rpc.rejection_rate import MOST_HELD

RATE: Final = 1_000.0
"""Calls that are started a second, of all hosts."""
BURST: Final = 256
"""Calls that are started at once after a quiet time, such as the first ones after a restart."""
MOST: Final = MOST_HELD


@dataclass(frozen=True, slots=True, eq=False)
class AcceptedCall:
    """A call before its start."""

    host: str
    is_recognized: Callable[[], bool]
    """Returns whether this member has authenticated the caller before."""
    is_over: Callable[[], bool]
    """Whether its deadline has passed."""
    start: Callable[[], None]
    reject: Callable[[], None]
    """Answers RESOURCE_EXHAUSTED."""


class UnrecognizedCalls:
    """The queue of one server."""

    def __init__(self) -> None:
        self._queue: LimitedTurns[AcceptedCall] = LimitedTurns(RATE, BURST, _start)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, call: AcceptedCall) -> None:
        """Start the call at once or in its turn, or reject a call."""
        if self._queue.take_burst():
            call.start()
            return
        if len(self._queue) >= MOST:
            displaced = self._queue.displace(call.host)
            if displaced is None:
                call.reject()
                return
            displaced.reject()
        self._queue.add(call.host, call)

    def close(self) -> None:
        """Drop the queued calls. The core of gRPC cancels calls that have no reference."""
        self._queue.clear()


def _start(call: AcceptedCall) -> bool:
    if call.is_over():
        return False
    recognized = call.is_recognized()
    call.start()
    return not recognized
