"""Runs that a member assigned together, and runs that succeeded together, as columns.

    RunBatch ────────────→ AssignedBatch: what is common, and columns of runs
    Assignment ──────────→ the same, of one run
    ended runs ──→ SuccessBatch ──→ ResultBatch, in the spool and to members

Invariants
- A run in hand is a batch and a place in it. What is common is read once for a batch.
- The message of a single assignment is created for those who read it: executors of programs and
  requests. Most handlers don't.
- A run of a success batch has the same outcome and digest as its `Result` would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property

from schedkit.bounds import FRAME
from schedkit.bounds.rules import Found
from schedkit.records import dataclass
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.ids import AssignmentKey, Incarnation
from workerd.core.outcome import Content

DEFAULT_TIMEOUT = timedelta(hours=1)


class AssignedBatch:
    """Assignments with the same fields, except run, job, payload and `traceparent`."""

    def __init__(
        self,
        common: pb.Assignment,
        keys: Sequence[AssignmentKey],
        scheduled: Sequence[int],
        jobs: Sequence[str] = (),
        payloads: Sequence[common_pb2.Payload] = (),
        *,
        single: bool = False,
    ) -> None:
        """`scheduled`: in microseconds since 1970. `payloads`: of the runs; empty: all have the
        payload of `common`. `single`: `common` is the only assignment.
        """
        self.common = common
        self.keys = keys
        self.scheduled = scheduled
        self._jobs = jobs
        self._payloads = payloads
        self.alike = not payloads
        """Whether all runs have the same payload, `content`."""
        self._single = single
        self.action = messages.action_of(common)
        self.incarnation = Incarnation(common.incarnation)

    @classmethod
    def of_one(cls, message: pb.Assignment) -> AssignedBatch:
        key = message.key
        scheduled = messages.microseconds(key.scheduled_at)
        return cls(message, (messages.key_of(key),), (scheduled,), single=True)

    @classmethod
    def of(cls, message: pb.RunBatch) -> AssignedBatch:
        """Return a batch without `violations`."""
        keys = messages.keys_of(message.run_ids, message.fencing_tokens)
        return cls(
            message.common, keys, message.scheduled_at[:], message.jobs[:], message.payloads[:]
        )

    def __len__(self) -> int:
        return len(self.keys)

    # -- What is common --

    @cached_property
    def not_before(self) -> int | None:
        """The due time of pre-dispatched runs, in microseconds since 1970; None for others."""
        common = self.common
        return messages.microseconds(common.not_before) if common.HasField("not_before") else None

    @cached_property
    def timeout(self) -> timedelta:
        common = self.common
        return messages.span_of(common.timeout) if common.HasField("timeout") else DEFAULT_TIMEOUT

    @cached_property
    def heartbeat_timeout(self) -> float:
        """Seconds without heartbeat that end an attempt; 0: no limit."""
        if not self.common.HasField("heartbeat_timeout"):
            return 0.0
        return messages.span_of(self.common.heartbeat_timeout).total_seconds()

    @cached_property
    def dies_with_lease(self) -> bool:
        """Whether attempts are killed when this worker's lease is lost."""
        return self.common.on_lease_lost == job_pb2.ON_LEASE_LOST_KILL

    @cached_property
    def content(self) -> Content | None:
        return messages.content_of(self.common.payload)

    # -- One run --

    def job(self, place: int) -> str:
        return self._jobs[place] if self._jobs else self.common.job

    def payload(self, place: int) -> common_pb2.Payload:
        """Return a run's payload as a message; without a kind if there is none."""
        return self._payloads[place] if self._payloads else self.common.payload

    def content_of(self, place: int) -> Content | None:
        """Return a run's payload; None if there is none. Runs without one of their own share it."""
        return messages.content_of(self._payloads[place]) if self._payloads else self.content

    def scheduled_at(self, place: int) -> datetime:
        return messages.date_at(self.scheduled[place])

    def traceparent(self, place: int) -> str:
        if self._single:
            return self.common.traceparent
        run, token = self.keys[place]
        return f"00-{run.replace('-', '')}-{token:016x}-01"

    def key(self, place: int) -> pb.AssignmentKey:
        if self._single:
            return self.common.key
        return messages.key_message(self.keys[place], self.scheduled[place])

    def assignment(self, place: int) -> pb.Assignment:
        if self._single:
            return self.common
        message = pb.Assignment()
        message.CopyFrom(self.common)
        message.key.CopyFrom(self.key(place))
        message.job, message.traceparent = self.job(place), self.traceparent(place)
        if self._payloads:
            message.payload.CopyFrom(self._payloads[place])
        return message

    def log_fields(self, place: int) -> dict[str, object]:
        return self.keys[place].log_fields | {"job": self.job(place)}


def run_violations(message: pb.RunBatch) -> Found:
    """Return the violations of a batch: of its bounds, and of the lengths of its columns."""
    if found := FRAME.violations(message):
        return found
    count = len(message.fencing_tokens)
    if not count:
        return [("fencing_tokens", "is empty")]
    columns = {
        "scheduled_at": len(message.scheduled_at),
        "jobs": len(message.jobs) or count,
        "payloads": len(message.payloads) or count,
    }
    return messages.uneven(message.run_ids, count, **columns)


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


def result_violations(message: pb.ResultBatch) -> Found:
    """Return the violations of a batch: of its bounds, and of the lengths of its columns."""
    return FRAME.violations(message) or messages.uneven(
        message.run_ids,
        len(message.fencing_tokens),
        scheduled_at=len(message.scheduled_at),
        started_at=len(message.started_at),
        finished_at=len(message.finished_at),
    )
