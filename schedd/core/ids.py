"""Ids and numbers of the protocol, one type for each kind: mypy tells tokens from epochs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha1
from os import urandom
from typing import NewType, TypeAlias
from uuid import UUID


class Id(bytes):
    """A UUID, as its 16 bytes: an owner looks each run up some eighty times, and bytes are hashed
    and compared in C, in a sixth of the time that `uuid.UUID` takes.
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> Id:
        """Raises ValueError if the value hasn't 16 bytes."""
        if len(value) != 16:
            raise ValueError(f"an id isn't a valid UUID: it has {len(value)} bytes instead of 16")
        return bytes.__new__(cls, value)

    @staticmethod
    def parse(text: str) -> Id:
        """Return the id in this text, in any form that `uuid.UUID` reads. Raises ValueError."""
        return Id(UUID(text).bytes)

    @staticmethod
    def from_int(number: int) -> Id:
        """Return the id with this number, from 0 to 2^128 - 1."""
        return Id(number.to_bytes(16))

    @property
    def number(self) -> int:
        """The id as a number, from 0 to 2^128 - 1."""
        return int.from_bytes(self)

    def __str__(self) -> str:
        text = self.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def __repr__(self) -> str:
        return f"Id('{self}')"


def new_id() -> Id:
    """Return a random id, version 4."""
    value = bytearray(urandom(16))
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    return bytes.__new__(Id, value)


def derived_id(of: Id, name: str) -> Id:
    """Return the id of a name in the space of another id, version 5: always the same one."""
    return _derived_ids([of], name)[0]


def _derived_ids(of: Iterable[Id], name: str) -> list[Id]:
    """Return the id of a name in the space of each of these ids."""
    written = name.encode()
    ids = []
    for one in of:
        value = bytearray(sha1(one + written, usedforsecurity=False).digest()[:16])
        value[6] = value[6] & 0x0F | 0x50
        value[8] = value[8] & 0x3F | 0x80
        ids.append(bytes.__new__(Id, value))
    return ids


JobId = NewType("JobId", Id)
RunId = NewType("RunId", Id)
TenureId = NewType("TenureId", Id)
IncarnationId = NewType("IncarnationId", Id)
BackfillId = NewType("BackfillId", Id)
RedriveId = NewType("RedriveId", Id)
AccessTokenId = NewType("AccessTokenId", Id)
ShardId = NewType("ShardId", int)
Epoch = NewType("Epoch", int)
Term = NewType("Term", int)
Timeline = NewType("Timeline", int)
Token = NewType("Token", int)


Hint: TypeAlias = tuple[RunId, JobId | None]
"""A run that was stored otherwise just now, and its job if that is known."""

NO_TOKEN = Token(0)
"""Less than every token: the run was never dispatched."""

SHARDS = 256
"""Hash partitions of the jobs. Part of the stored data: changing it means moving every job."""

SEQUENCES = 1 << 31
"""Sequence numbers an owner may use in one epoch. After the last it takes the shard over again."""


def token_of(epoch: Epoch, sequence: int) -> Token:
    """Return the token `epoch << 32 | sequence`, which grows with each assignment and epoch."""
    if not 0 < sequence <= SEQUENCES:
        raise ValueError(
            f"the fencing token can't be created: its sequence number {sequence} isn't from 1"
            f" to {SEQUENCES}"
        )
    return Token(epoch << 32 | sequence)


def epoch_of(token: Token) -> Epoch:
    return Epoch(token >> 32)


def run_ids_of(packed: bytes) -> list[RunId]:
    """Return the run ids in these bytes, 16 for each. Raises ValueError if one is incomplete."""
    if len(packed) % 16:
        raise ValueError(
            f"the worker's message is invalid: its list of run ids has {len(packed)} bytes,"
            " which isn't a multiple of 16"
        )
    new = bytes.__new__  # without a call of `Id` for each
    return [RunId(new(Id, packed[at : at + 16])) for at in range(0, len(packed), 16)]


def scheduled_run_id(job: JobId, nominal: datetime) -> RunId:
    """Return the id of the run of a scheduled time (aware): the same on every member."""
    return scheduled_run_ids([job], nominal)[0]


def scheduled_run_ids(jobs: Iterable[JobId], nominal: datetime) -> list[RunId]:
    """Return the id of each job's run of a scheduled time (`scheduled_run_id`)."""
    return [*map(RunId, _derived_ids(jobs, _text_of(nominal)))]


@lru_cache(maxsize=1_024)
def _text_of(nominal: datetime) -> str:
    return nominal.astimezone(UTC).isoformat(timespec="microseconds")


def redriven_run_id(run: RunId) -> RunId:
    """Return the id of the run that a redrive of this run creates: always the same one."""
    return RunId(derived_id(run, "redrive"))


def child_run_id(parent: RunId, worker: str) -> RunId:
    """Return the id of a broadcast's run for the worker of this name: one for each parent."""
    return RunId(derived_id(parent, f"child/{worker}"))


def backfilled_run_id(backfill: BackfillId, nominal: datetime) -> RunId:
    """Return the id of a backfill's run of a scheduled time (aware): not the schedule's own."""
    return RunId(derived_id(backfill, _text_of(nominal)))


def chained_run_id(child: JobId, scheduled_at: datetime, root: Id) -> RunId:
    """Return the id of a job's run in one cycle of a chain: the same on every member."""
    return RunId(derived_id(child, f"{_text_of(scheduled_at)}/{root}"))
