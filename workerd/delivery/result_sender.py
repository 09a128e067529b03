"""Carries results from their end to a member's acknowledgement, by way of the spool.

    put → spool (batched, synced) → a stream → acknowledged → out of the spool
                                      └─ broken, or silent for `PATIENCE` → another stream

Invariants
- Nothing is sent before it is on disk, and nothing leaves the disk before a member has answered
  ACCEPTED (stored) or STALE (refused and audited; there is nothing more to do). But at the end of
  a worker (`leave`) what its disk doesn't take is sent as it is: it would be lost unheard.
- A result goes first to the member that issued its assignment, while that is attached; else, and
  whenever it stays unanswered, to another. Sending twice is harmless: members know it by digest.
- An end that is held back (`put` with `held`) is on disk as well, and sent as it is by whoever
  starts next; it goes when it is `release`d, in the words given then.
- While the disk takes nothing, `refuses` says so and no new work should be asked for: from before
  the first hello, when it is tried, until all that waits is written and a trial has passed.
- Where a batch finds no room a smaller one is tried, of the smallest; what fits is written.
- That the disk takes nothing is a line of the log once, and each `TELL_EVERY` at most; that it does
  again is one, if the other was.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.ids import Address, AssignmentKey
from workerd.delivery.spool import Spool
from workerd.messages import key_of

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which an unanswered result is sent again, doubled each time up to the maximum."""
MAX_PATIENCE = 30.0
TELL_EVERY = 60.0
"""Seconds from one line that says that the disk takes nothing to the next, tried as it may be."""
_TICK = 0.25
_MOST_AT_ONCE = 500
_MOST_BYTES = 1 << 20
"""Of a batch, unless one result has more."""


class ResultStream(Protocol):
    """An attached stream, as far as results go."""

    @property
    def address(self) -> Address:
        """The member at its end."""
        ...

    def send_result(self, result: pb.Result) -> None:
        """Queue it."""
        ...


@dataclass(slots=True)
class _Parcel:
    result: pb.Result
    issuer: Address | None
    file: Path | None = None
    """Set once it is on disk."""
    earlier: tuple[Path, ...] = ()
    """Where it is on disk in words of before, until the last ones are."""
    carrier: ResultStream | None = None
    sent: float = 0.0
    patience: float = PATIENCE
    held: bool = False


class ResultSender:
    """All results that no member has stored yet."""

    def __init__(
        self,
        spool: Spool,
        on_settled: Callable[[AssignmentKey, str], object],
        *,
        limit: int = 1 << 28,
    ) -> None:
        """`on_settled(key, verdict)` is called for each that left the spool. `limit`: bytes in the
        spool past which it `refuses` work.
        """
        self._spool = spool
        self._limit = limit
        self._on_settled = on_settled
        self._parcels: dict[AssignmentKey, _Parcel] = {}
        self._unspooled: dict[AssignmentKey, None] = {}
        """What is to be written, in order: each once, however often its words change."""
        self._settled: list[Path] = []
        self._streams: list[ResultStream] = []
        self._turn = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._spool_work = asyncio.Event()
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._full = ""
        """Why the spool takes nothing, in words."""
        self._to_tell = 0.0
        """When that may be told next, by the boot clock."""
        self._told = False
        """Whether it was told of the disk as it is now."""
        self._most = _MOST_AT_ONCE
        """Results of the next batch: half of the one that found no room, twice what found it."""
        self._leaving = False

    @property
    def room(self) -> tuple[int, int]:
        """Bytes that the spool takes, and that are free on its disk."""
        return self._spool.size, self._spool.free()

    @property
    def refuses(self) -> str:
        """Why no new work may be asked for, in words; empty: its results would find room."""
        if self._full:
            return f"its spool takes nothing: {self._full}"
        if self._spool.size >= self._limit:
            return f"its spool holds {self._spool.size:,} bytes, and may hold {self._limit:,}"
        return ""

    def __len__(self) -> int:
        return len(self._parcels)

    @property
    def left(self) -> tuple[int, int]:
        """How many results the next start finds in the spool, and how many it doesn't."""
        on_disk = sum(1 for each in self._parcels.values() if each.file or each.earlier)
        return on_disk, len(self._parcels) - on_disk

    def load(self) -> None:
        """Take over what earlier processes left, and try whether the disk takes more. Blocks;
        called before the first hello.
        """
        for file, results in self._spool.load():
            for result in results:
                key = key_of(result.key)
                if (first := self._parcels.get(key)) is not None and first.file is not None:
                    self._settled.append(first.file)  # a second copy; the later one says more
                self._parcels[key] = _Parcel(result, None, file)
        if self._parcels:
            self._all_settled.clear()
            log.info("%d results wait in the spool", len(self._parcels))
        try:
            self._spool.try_out()
        except OSError as error:
            self._found_full(error)
            self._spool_work.set()

    def put(self, result: pb.Result, issuer: Address | None, *, held: bool = False) -> None:
        """An attempt has ended."""
        key = key_of(result.key)
        self._parcels[key] = _Parcel(result, issuer, held=held)
        self._unspooled[key] = None
        self._all_settled.clear()
        self._spool_work.set()

    def release(self, result: pb.Result) -> None:
        """What was held back may be told, in these words."""
        key = key_of(result.key)
        parcel = self._parcels[key]
        if parcel.file is not None:
            parcel.earlier = (*parcel.earlier, parcel.file)
        parcel.result, parcel.file, parcel.held = result, None, False
        self._unspooled[key] = None
        self._spool_work.set()

    def results(self) -> Iterator[pb.Result]:
        """Everything not acknowledged."""
        return (parcel.result for parcel in self._parcels.values())

    def again(self, key: AssignmentKey) -> None:
        """Its member asked for it once more, not knowing that it had ended."""
        parcel = self._parcels.get(key)
        if parcel is not None and self._may_go(parcel):
            self._send(parcel)

    def leave(self) -> None:
        """The worker ends when all is settled, or soon: what the disk doesn't take goes without."""
        self._leaving = True

    def acknowledge(self, answers: Iterable[pb.Acknowledgement]) -> None:
        """Members have answered."""
        for answer in answers:
            if answer.verdict == pb.Acknowledgement.VERDICT_UNSPECIFIED:
                continue
            key = key_of(answer.key)
            parcel = self._parcels.get(key)
            if parcel is None or (parcel.file is None and not parcel.sent):
                continue  # answered twice, by two members
            del self._parcels[key]
            self._unspooled.pop(key, None)
            self._settled += (
                parcel.earlier if parcel.file is None else (*parcel.earlier, parcel.file)
            )
            stale = answer.verdict == pb.Acknowledgement.VERDICT_STALE
            if stale:
                log.warning(
                    "result of run %s, token %d, was refused as stale", *key, extra=key.said
                )
            self._on_settled(key, "stale" if stale else "accepted")
        self._spool_work.set()
        self._look_if_settled()

    def attached(self, stream: ResultStream) -> None:
        """One more way to send."""
        self._streams.append(stream)
        for parcel in self._parcels.values():
            if parcel.carrier is None and self._may_go(parcel):
                self._send(parcel)

    def detached(self, stream: ResultStream) -> None:
        """That way is gone; what it carried goes another."""
        self._streams.remove(stream)
        for parcel in self._parcels.values():
            if parcel.carrier is stream:
                parcel.carrier = None
                self._send(parcel)

    async def settled(self) -> None:
        """Return when nothing waits any more, and the spool is empty of results."""
        await self._all_settled.wait()

    async def keep_sending(self) -> NoReturn:
        """Send again what stays unanswered."""
        while True:
            await asyncio.sleep(_TICK)
            now = boottime()
            for parcel in self._parcels.values():
                if now - parcel.sent > parcel.patience and self._may_go(parcel):
                    parcel.patience = min(parcel.patience * 2, MAX_PATIENCE)
                    self._send(parcel, other_than=parcel.carrier)

    async def keep_spooling(self) -> NoReturn:
        """Write what ended and remove what is settled, in batches, off the event loop."""
        backoff = Backoff(initial=0.1, maximum=5.0)
        while True:
            await self._spool_work.wait()
            self._spool_work.clear()
            try:
                await self._flush()
                if self._full:
                    await self._in_thread(Spool.try_out, self._spool)
            except OSError as error:
                self._found_full(error)
                await asyncio.sleep(backoff.next())
                self._spool_work.set()
            else:
                self._found_room()
                backoff.reset()

    def _found_full(self, error: OSError) -> None:
        self._full = error.strerror or str(error)
        if (now := boottime()) >= self._to_tell:
            self._told, self._to_tell = True, now + TELL_EVERY
            log.warning("the spool takes nothing: %s; no new work until it does", error)

    def _found_room(self) -> None:
        self._full = ""
        if self._told:
            self._told = False
            log.info("the spool takes results again, and new work is asked for")

    async def _flush(self) -> None:
        try:
            await self._write()
        except OSError:
            await self._remove()  # which makes room
            raise
        await self._remove()

    async def _write(self) -> None:
        while self._unspooled:
            batch = self._batch()
            try:
                await self._write_batch(batch)
            except OSError:
                self._unspooled = dict.fromkeys(sorted(self._unspooled, key=self._size))
                if len(batch) == 1 and self._most == 1:
                    raise
                self._most = max(1, len(batch) // 2)
            else:
                self._most = min(self._most * 2, _MOST_AT_ONCE)

    def _batch(self) -> list[AssignmentKey]:
        batch: list[AssignmentKey] = []
        room = _MOST_BYTES
        for key in itertools.islice(self._unspooled, self._most):
            room -= self._size(key)
            if batch and room < 0:
                break
            batch.append(key)
        return batch

    def _size(self, key: AssignmentKey) -> int:
        return self._parcels[key].result.ByteSize()

    async def _write_batch(self, batch: list[AssignmentKey]) -> None:
        parcels = [self._parcels[key] for key in batch]
        written = [each.result for each in parcels]
        file = await self._in_thread(self._spool.write, written)
        for key, parcel, result in zip(batch, parcels, written, strict=True):
            if key not in self._parcels:  # a member has it
                self._settled.append(file)
            elif parcel.result is not result:  # released meanwhile: its words come later
                parcel.earlier = (*parcel.earlier, file)
            else:
                del self._unspooled[key]
                self._settled += parcel.earlier
                parcel.file, parcel.earlier = file, ()
                self._send(parcel)

    async def _remove(self) -> None:
        settled, self._settled = self._settled, []
        if settled or self._full:  # else nothing was left undone
            await self._in_thread(self._spool.acknowledged, settled)
        self._look_if_settled()

    def _look_if_settled(self) -> None:
        if not self._parcels and not self._settled:
            self._all_settled.set()

    async def _in_thread(self, call: Callable[[A], T], argument: A) -> T:
        """In a thread of its own: those of the loop may all wait for names to be resolved."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, argument)

    def _may_go(self, parcel: _Parcel) -> bool:
        on_disk = parcel.file is not None
        return not parcel.held and (on_disk or (self._leaving and self._full != ""))

    def _send(self, parcel: _Parcel, other_than: ResultStream | None = None) -> None:
        if parcel.held:
            return
        stream = self._choose(parcel.issuer, other_than)
        parcel.carrier = stream
        if stream is not None:
            parcel.sent = boottime()
            stream.send_result(parcel.result)

    def _choose(
        self, issuer: Address | None, other_than: ResultStream | None
    ) -> ResultStream | None:
        candidates = [each for each in self._streams if each is not other_than] or self._streams
        for stream in candidates:
            if stream.address == issuer:
                return stream
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)]
