"""Results of plain successes as columns: no message for each, in the spool and on the wire.

    ended runs ──→ SuccessBatch ──→ ResultBatch, in the spool and to members

Invariant: a run of a batch has the same outcome and digest as its `Result` would have.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedkit.bounds import FRAME
from schedkit.bounds.rules import Found
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.ids import AssignmentKey, Incarnation


@dataclass(slots=True, eq=False)
class SuccessBatch:
    """Runs of one incarnation that succeeded. Times are in microseconds since 1970."""

    incarnation: Incarnation
    keys: list[AssignmentKey]
    scheduled: list[int]
    started: list[int]
    finished: list[int]

    @classmethod
    def of(cls, message: pb.ResultBatch) -> SuccessBatch:
        """Return a batch without `violations`."""
        return cls(
            Incarnation(message.incarnation),
            messages.keys_of(message.run_ids, message.fencing_tokens),
            message.scheduled_at[:],
            message.started_at[:],
            message.finished_at[:],
        )

    def __len__(self) -> int:
        return len(self.keys)

    def extend(self, other: SuccessBatch) -> None:
        self.keys += other.keys
        self.scheduled += other.scheduled
        self.started += other.started
        self.finished += other.finished

    def split(self, count: int) -> SuccessBatch:
        """Remove all runs after the first `count`, and return them."""
        rest = self.only(range(count, len(self)))
        for column in (self.keys, self.scheduled, self.started, self.finished):
            del column[count:]
        return rest

    def only(self, places: Sequence[int]) -> SuccessBatch:
        return SuccessBatch(
            self.incarnation,
            [self.keys[place] for place in places],
            [self.scheduled[place] for place in places],
            [self.started[place] for place in places],
            [self.finished[place] for place in places],
        )

    def message(self) -> pb.ResultBatch:
        return pb.ResultBatch(
            incarnation=self.incarnation,
            run_ids=messages.packed_ids(self.keys),
            fencing_tokens=[token for _, token in self.keys],
            scheduled_at=self.scheduled,
            started_at=self.started,
            finished_at=self.finished,
        )


def violations(message: pb.ResultBatch) -> Found:
    """Return the violations of a batch: of its bounds, and of the lengths of its columns."""
    return FRAME.violations(message) or messages.uneven(
        message.run_ids,
        len(message.fencing_tokens),
        scheduled_at=len(message.scheduled_at),
        started_at=len(message.started_at),
        finished_at=len(message.finished_at),
    )
