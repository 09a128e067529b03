"""Carries results from their end to a member's acknowledgement, by way of the spool.

    put → spool (batched, synced) → a stream → acknowledged → out of the spool
                                      └─ broken, or silent for `PATIENCE` → another stream

Invariants
- Nothing is sent before it is on disk, and nothing leaves the disk before a member has answered
  ACCEPTED (stored) or STALE (refused and audited; there is nothing more to do).
- A result goes first to the member that issued its assignment, while that is attached; else, and
  whenever it stays unanswered, to another. Sending twice is harmless: members know it by digest.
- An end that is held back (`put` with `held`) is on disk as well, and sent as it is by whoever
  starts next; it goes when it is `release`d, in the words given then.
- While the disk takes nothing, `refuses` says so and no new work should be asked for.
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
from workerd.core.ids import Address, Key
from workerd.spool import Spool
from workerd.wire import key_of

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which an unanswered result is sent again, doubled each time up to the maximum."""
MAX_PATIENCE = 30.0
_TICK = 0.25
_MAX_BATCH = 500


class Stream(Protocol):
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
    carrier: Stream | None = None
    sent: float = 0.0
    patience: float = PATIENCE
    held: bool = False


class Courier:
    """All results that no member has stored yet."""

    def __init__(
        self, spool: Spool, on_settled: Callable[[Key, str], object], *, limit: int = 1 << 28
    ) -> None:
        """`on_settled(key, verdict)` is called for each that left the spool. `limit`: bytes in the
        spool past which it `refuses` work.
        """
        self._spool = spool
        self._limit = limit
        self._on_settled = on_settled
        self._parcels: dict[Key, _Parcel] = {}
        self._unspooled: dict[Key, None] = {}
        """What is to be written, in order: each once, however often its words change."""
        self._settled: list[Path] = []
        self._streams: list[Stream] = []
        self._turn = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._spool_work = asyncio.Event()
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._full = ""
        """Why the spool takes nothing, in words."""

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

    def load(self) -> None:
        """Take over what earlier processes left. Blocks; called before the first hello."""
        for file, results in self._spool.load():
            for result in results:
                key = key_of(result.key)
                if (first := self._parcels.get(key)) is not None and first.file is not None:
                    self._settled.append(first.file)  # a second copy; the later one says more
                self._parcels[key] = _Parcel(result, None, file)
        if self._parcels:
            self._all_settled.clear()
            log.info("%d results wait in the spool", len(self._parcels))

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
            self._settled.append(parcel.file)
        parcel.result, parcel.file, parcel.held = result, None, False
        self._unspooled[key] = None
        self._spool_work.set()

    def results(self) -> Iterator[pb.Result]:
        """Everything not acknowledged."""
        return (parcel.result for parcel in self._parcels.values())

    def again(self, key: Key) -> None:
        """Its member asked for it once more, not knowing that it had ended."""
        parcel = self._parcels.get(key)
        if parcel is not None and parcel.file is not None:
            self._send(parcel)

    def acknowledge(self, answers: Iterable[pb.Acknowledgement]) -> None:
        """Members have answered."""
        for answer in answers:
            if answer.verdict == pb.Acknowledgement.VERDICT_UNSPECIFIED:
                continue
            key = key_of(answer.key)
            parcel = self._parcels.get(key)
            if parcel is None or parcel.file is None:
                continue  # answered twice, by two members
            del self._parcels[key]
            self._settled.append(parcel.file)
            stale = answer.verdict == pb.Acknowledgement.VERDICT_STALE
            if stale:
                log.warning(
                    "result of run %s, token %d, was refused as stale", *key, extra=key.said
                )
            self._on_settled(key, "stale" if stale else "accepted")
        self._spool_work.set()

    def attached(self, stream: Stream) -> None:
        """One more way to send."""
        self._streams.append(stream)
        for parcel in self._parcels.values():
            if parcel.file is not None and parcel.carrier is None:
                self._send(parcel)

    def detached(self, stream: Stream) -> None:
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
                due = parcel.file is not None and now - parcel.sent > parcel.patience
                if due and not parcel.held:
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
            except OSError as error:
                self._full = error.strerror or str(error)
                log.warning("the spool takes nothing: %s; no new work until it does", error)
                await asyncio.sleep(backoff.next())
                self._spool_work.set()
            else:
                self._full = ""
                backoff.reset()

    async def _flush(self) -> None:
        while self._unspooled:
            batch = [*itertools.islice(self._unspooled, _MAX_BATCH)]
            parcels = [self._parcels[key] for key in batch]
            written = [each.result for each in parcels]
            file = await self._in_thread(self._spool.write, written)
            for key, parcel, result in zip(batch, parcels, written, strict=True):
                if parcel.result is not result:  # released meanwhile: its words come later
                    self._settled.append(file)
                    continue
                del self._unspooled[key]
                parcel.file = file
                self._send(parcel)
        settled, self._settled = self._settled, []
        if settled or self._full:  # else nothing was left undone
            await self._in_thread(self._spool.acknowledged, settled)
        if not self._parcels and not self._settled:
            self._all_settled.set()

    async def _in_thread(self, call: Callable[[A], T], argument: A) -> T:
        """In a thread of its own: those of the loop may all wait for names to be resolved."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, argument)

    def _send(self, parcel: _Parcel, other_than: Stream | None = None) -> None:
        if parcel.held:
            return
        stream = self._choose(parcel.issuer, other_than)
        parcel.carrier = stream
        if stream is not None:
            parcel.sent = boottime()
            stream.send_result(parcel.result)

    def _choose(self, issuer: Address | None, other_than: Stream | None) -> Stream | None:
        candidates = [each for each in self._streams if each is not other_than] or self._streams
        for stream in candidates:
            if stream.address == issuer:
                return stream
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)]
