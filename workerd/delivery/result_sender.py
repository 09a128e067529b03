"""Send results from the spool to members until they are acknowledged.

    put → spool (batched, synced) → a stream → acknowledged → removed from the spool
                                      └─ broken, or silent for `RESEND_AFTER` → another stream

Invariants
- A result is on disk before it is sent, and stays there until a member has answered ACCEPTED
  (stored) or STALE (rejected and audited). Exception: at the shutdown of a worker (`leave`) results
  that can't be written are sent directly, because they would be lost.
- A result goes first to the member that issued its assignment, if it is attached. Otherwise, and
  when it stays unanswered, it goes to another member. Sending twice is harmless: members recognize
  it by its digest.
- A held result (`put` with `held`) is on disk, too; the next worker process sends it as it is. It
  is sent after `release`, with the contents given then.
- While the disk rejects writes, `refusal_reason` returns the cause and the worker requests no new
  work: from before the first hello until all results are written and a trial write has succeeded.
- If a batch doesn't fit on the disk, a smaller one is tried, of the smallest results.
- A full disk is logged at most every `LOG_EVERY`. Its recovery is logged if the problem was.
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

RESEND_AFTER = 2.0
"""Seconds after which an unanswered result is sent again; doubled each time up to the maximum."""
MAX_RESEND_AFTER = 30.0
LOG_EVERY = 60.0
"""Seconds between two log lines about a disk that rejects writes."""
_TICK = 0.25
_MOST_AT_ONCE = 500
_MOST_BYTES = 1 << 20
"""Bytes of a batch, unless a single result has more."""


class ResultStream(Protocol):
    """An attached stream, for results."""

    @property
    def address(self) -> Address:
        """The member's address."""
        ...

    def send_result(self, result: pb.Result) -> None:
        """Queue a result."""
        ...


@dataclass(slots=True)
class _PendingResult:
    result: pb.Result
    issuer: Address | None
    file: Path | None = None
    """Set once it is on disk."""
    earlier: tuple[Path, ...] = ()
    """Files with earlier contents of it, until the last contents are on disk."""
    carrier: ResultStream | None = None
    sent: float = 0.0
    resend_after: float = RESEND_AFTER
    held: bool = False


class ResultSender:
    """All results that no member has acknowledged yet."""

    def __init__(
        self,
        spool: Spool,
        on_acknowledged: Callable[[AssignmentKey, str], object],
        *,
        limit: int = 1 << 28,
    ) -> None:
        """`on_acknowledged(key, verdict)` is called for each acknowledged result. `limit`: bytes
        in the spool from which the worker requests no new work.
        """
        self._spool = spool
        self._limit = limit
        self._on_acknowledged = on_acknowledged
        self._parcels: dict[AssignmentKey, _PendingResult] = {}
        self._unspooled: dict[AssignmentKey, None] = {}
        """Results to write, in order: each once, even if its contents change."""
        self._done: list[Path] = []
        self._streams: list[ResultStream] = []
        self._turn = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._spool_work = asyncio.Event()
        self._delivered = asyncio.Event()
        self._delivered.set()
        self._full = ""
        """Why the spool rejects writes."""
        self._log_next_at = 0.0
        """When that may be logged next, by the boot clock."""
        self._full_logged = False
        """Whether the current problem of the disk was logged."""
        self._most = _MOST_AT_ONCE
        """Results of the next batch: half of one that didn't fit, double of one that did."""
        self._leaving = False

    @property
    def room(self) -> tuple[int, int]:
        """Bytes that the spool uses, and that are free on its disk."""
        return self._spool.size, self._spool.free()

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if there is room for its results."""
        if self._full:
            return f"spool rejects writes: {self._full}"
        if self._spool.size >= self._limit:
            return (
                f"spool holds {self._spool.size:,} bytes: above the limit of {self._limit:,} bytes"
            )
        return ""

    def __len__(self) -> int:
        return len(self._parcels)

    @property
    def count_remaining(self) -> tuple[int, int]:
        """Number of results that are in the spool, and number of those that aren't."""
        on_disk = sum(1 for each in self._parcels.values() if each.file or each.earlier)
        return on_disk, len(self._parcels) - on_disk

    def load(self) -> None:
        """Load the results of earlier processes, and try to write to the disk. Blocks; called
        before the first hello.
        """
        for file, results in self._spool.load():
            for result in results:
                key = key_of(result.key)
                if (first := self._parcels.get(key)) is not None and first.file is not None:
                    self._done.append(first.file)  # a second copy; the later one is more complete
                self._parcels[key] = _PendingResult(result, None, file)
        if self._parcels:
            self._delivered.clear()
            log.info("%d results in the spool wait for delivery", len(self._parcels))
        try:
            self._spool.try_out()
        except OSError as error:
            self._found_full(error)
            self._spool_work.set()

    def put(self, result: pb.Result, issuer: Address | None, *, held: bool = False) -> None:
        """Add the result of an ended attempt."""
        key = key_of(result.key)
        self._parcels[key] = _PendingResult(result, issuer, held=held)
        self._unspooled[key] = None
        self._delivered.clear()
        self._spool_work.set()

    def release(self, result: pb.Result) -> None:
        """Send a held result, with these contents."""
        key = key_of(result.key)
        parcel = self._parcels[key]
        if parcel.file is not None:
            parcel.earlier = (*parcel.earlier, parcel.file)
        parcel.result, parcel.file, parcel.held = result, None, False
        self._unspooled[key] = None
        self._spool_work.set()

    def results(self) -> Iterator[pb.Result]:
        """Return all results that aren't acknowledged."""
        return (parcel.result for parcel in self._parcels.values())

    def again(self, key: AssignmentKey) -> None:
        """Send a result again: its member sent the assignment once more."""
        parcel = self._parcels.get(key)
        if parcel is not None and self._may_go(parcel):
            self._send(parcel)

    def shut_down(self) -> None:
        """Shut down: from now on results that the disk rejects are sent without being spooled."""
        self._leaving = True

    def acknowledge(self, answers: Iterable[pb.Acknowledgement]) -> None:
        """Remove the results that members have answered."""
        for answer in answers:
            if answer.verdict == pb.Acknowledgement.VERDICT_UNSPECIFIED:
                continue
            key = key_of(answer.key)
            parcel = self._parcels.get(key)
            if parcel is None or (parcel.file is None and not parcel.sent):
                continue  # answered twice, by two members
            del self._parcels[key]
            self._unspooled.pop(key, None)
            self._done += parcel.earlier if parcel.file is None else (*parcel.earlier, parcel.file)
            stale = answer.verdict == pb.Acknowledgement.VERDICT_STALE
            if stale:
                log.warning(
                    "result rejected as stale: run %s, token %d", *key, extra=key.log_fields
                )
            self._on_acknowledged(key, "stale" if stale else "accepted")
        self._spool_work.set()
        self._check_delivered()

    def attached(self, stream: ResultStream) -> None:
        """Add a stream, and send results that have none."""
        self._streams.append(stream)
        for parcel in self._parcels.values():
            if parcel.carrier is None and self._may_go(parcel):
                self._send(parcel)

    def detached(self, stream: ResultStream) -> None:
        """Remove a stream; send its results over another."""
        self._streams.remove(stream)
        for parcel in self._parcels.values():
            if parcel.carrier is stream:
                parcel.carrier = None
                self._send(parcel)

    async def delivered(self) -> None:
        """Return when all results are acknowledged and removed from the spool."""
        await self._delivered.wait()

    async def keep_sending(self) -> NoReturn:
        """Resend unanswered results."""
        while True:
            await asyncio.sleep(_TICK)
            now = boottime()
            for parcel in self._parcels.values():
                if now - parcel.sent > parcel.resend_after and self._may_go(parcel):
                    parcel.resend_after = min(parcel.resend_after * 2, MAX_RESEND_AFTER)
                    self._send(parcel, other_than=parcel.carrier)

    async def keep_spooling(self) -> NoReturn:
        """Write new results and remove acknowledged ones, in batches, off the event loop."""
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
        if (now := boottime()) >= self._log_next_at:
            self._full_logged, self._log_next_at = True, now + LOG_EVERY
            log.warning(
                "spool rejects writes: %s; no new work is requested until it accepts them", error
            )

    def _found_room(self) -> None:
        self._full = ""
        if self._full_logged:
            self._full_logged = False
            log.info("spool accepts writes again; new work is requested")

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
            if key not in self._parcels:  # a member has acknowledged it
                self._done.append(file)
            elif parcel.result is not result:  # released meanwhile: the new contents come later
                parcel.earlier = (*parcel.earlier, file)
            else:
                del self._unspooled[key]
                self._done += parcel.earlier
                parcel.file, parcel.earlier = file, ()
                self._send(parcel)

    async def _remove(self) -> None:
        done, self._done = self._done, []
        if done or self._full:  # else nothing was left undone
            await self._in_thread(self._spool.acknowledged, done)
        self._check_delivered()

    def _check_delivered(self) -> None:
        if not self._parcels and not self._done:
            self._delivered.set()

    async def _in_thread(self, call: Callable[[A], T], argument: A) -> T:
        """Call in a separate thread: those of the loop may all wait for DNS."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, argument)

    def _may_go(self, parcel: _PendingResult) -> bool:
        on_disk = parcel.file is not None
        return not parcel.held and (on_disk or (self._leaving and self._full != ""))

    def _send(self, parcel: _PendingResult, other_than: ResultStream | None = None) -> None:
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
