"""Send results from the spool to members until they are acknowledged.

    put → spool (batched, synced) → a stream → acknowledged → removed from the spool
                                      └─ broken, or silent for `RESEND_AFTER` → another stream

Plain successes are kept as columns (`SuccessBatch`): those that end while a file is written go into
the next file, and to the member as one message. Any other result is a batch of one.

Invariants
- A result is on disk before it is sent, and stays there until a member has answered ACCEPTED
  (stored) or STALE (rejected and audited). Exception: at the shutdown of a worker (`leave`) results
  that can't be written are sent directly, because they would be lost.
- A result goes first to the member that issued its assignment, if it is attached. Otherwise, and
  when it stays unanswered, it goes to another member. Sending twice is harmless: members recognize
  it by its digest.
- A batch is sent again without the runs that were answered. If a member asks for runs of it, only
  these runs are sent, and each at most once in `RESEND_AFTER`.
- A file holds batches of successes or single results, never both: an earlier version, which can't
  read batches, sets such a file aside instead of removing it with its last single result.
- A held result (`put` with `held`) is on disk, too; the next worker process sends it as it is. It
  is sent after `release`, with the contents given then.
- While the disk rejects writes, `refusal_reason` returns the cause and the worker requests no new
  work: from before the first hello until all results are written and a trial write has succeeded.
- If a batch doesn't fit on the disk, a smaller one is tried, of the smallest results.
- A full disk is logged at most every `LOG_EVERY`. Its recovery is logged if the problem was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import NoReturn, TypeVar

from schedkit.backoff import Backoff
from schedkit.bounds.tables import MOST_IN_BATCH
from schedkit.clock import boottime
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd.batches import SuccessBatch
from workerd.core.ids import Address, AssignmentKey, Incarnation
from workerd.delivery.spool import Spool
from workerd.frame_queue import MemberFrameQueue
from workerd.messages import key_of, keys_of, microseconds

log = logging.getLogger(__name__)

T = TypeVar("T")

RESEND_AFTER = 2.0
"""Seconds after which an unanswered result is sent again; doubled each time up to the maximum."""
MAX_RESEND_AFTER = 30.0
LOG_EVERY = 60.0
"""Seconds between two log lines about a disk that rejects writes."""
_TICK = 0.25
_MOST_AT_ONCE = MOST_IN_BATCH
_MOST_BYTES = 1 << 20
"""Bytes of a batch, unless a single result has more."""


@dataclass(slots=True, eq=False)
class _PendingBatch:
    """Results that are spooled and sent together."""

    content: pb.Result | SuccessBatch
    issuer: Address | None
    left: int = 1
    """Results that no member has answered."""
    file: Path | None = None
    """Set once it is on disk."""
    earlier: tuple[Path, ...] = ()
    """Files with earlier contents of it, until the last contents are on disk."""
    carrier: MemberFrameQueue | None = None
    sent: float = 0.0
    resend_after: float = RESEND_AFTER
    resent: dict[AssignmentKey, float] | None = None
    """When results were sent alone (`again`) after the batch was sent."""
    held: bool = False

    @property
    def count(self) -> int:
        return len(self.content) if isinstance(self.content, SuccessBatch) else 1

    @property
    def size(self) -> int:
        """Bytes on disk, about."""
        if isinstance(self.content, SuccessBatch):
            return _BYTES_OF_SUCCESS * len(self.content)
        return self.content.ByteSize()


_SIZE = attrgetter("size")
_BYTES_OF_SUCCESS = 48
"""The id, and four numbers of eight bytes."""


class ResultSender:
    """All results that no member has acknowledged yet."""

    def __init__(
        self,
        spool: Spool,
        on_acknowledged: Callable[[Sequence[AssignmentKey], str], object],
        *,
        limit: int = 1 << 28,
    ) -> None:
        """`on_acknowledged(keys, verdict)` is called for acknowledged results. `worker`: its name.
        `limit`: bytes in the spool from which the worker requests no new work.
        """
        self._spool = spool
        self._limit = limit
        self._on_acknowledged = on_acknowledged
        self._pending: dict[AssignmentKey, _PendingBatch] = {}
        """The batch of each result that no member has answered."""
        self._batches: dict[_PendingBatch, None] = {}
        self._open: dict[tuple[Incarnation, Address | None], _PendingBatch] = {}
        """Batches that more successes may join."""
        self._unspooled: dict[_PendingBatch, None] = {}
        """Batches to write, in order: each once, even if its contents change."""
        self._done = Counter[Path]()
        """Answered results to remove from each file."""
        self._streams: list[MemberFrameQueue] = []
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
        return len(self._pending)

    @property
    def count_remaining(self) -> tuple[int, int]:
        """Number of results that are in the spool, and number of those that aren't."""
        on_disk = sum(each.left for each in self._batches if each.file or each.earlier)
        return on_disk, len(self._pending) - on_disk

    def load(self) -> None:
        """Load the results of earlier processes, and try to write to the disk. Blocks; called
        before the first hello.
        """
        for file, frame in self._spool.load():
            for result in frame.results:
                self._load(result, file)
            for batch in frame.result_batches:
                self._load(SuccessBatch.of(batch), file)
        if self._pending:
            self._delivered.clear()
            log.info("%d results in the spool wait for delivery", len(self._pending))
        try:
            self._spool.try_out()
        except OSError as error:
            self._found_full(error)
            self._spool_work.set()

    def _load(self, content: pb.Result | SuccessBatch, file: Path) -> None:
        keys = {*_keys(content)}
        batch = _PendingBatch(content, None, left=len(keys), file=file)
        if batch.left < batch.count:
            self._done[file] += batch.count - batch.left
        for key in keys:
            if (first := self._pending.get(key)) is not None and first.file is not None:
                self._done[first.file] += 1  # a second copy; the later one is more complete
                first.left -= 1
                if not first.left:
                    self._batches.pop(first, None)
            self._pending[key] = batch
        self._batches[batch] = None

    def put(self, result: pb.Result, issuer: Address | None, *, held: bool = False) -> None:
        batch = _PendingBatch(result, issuer, held=held)
        self._pending[key_of(result.key)] = batch
        self._add(batch)

    def put_successes(self, successes: SuccessBatch, issuer: Address | None) -> None:
        """Add results of attempts that ended together."""
        if len(successes) > MOST_IN_BATCH:
            rest = successes.split(MOST_IN_BATCH)
            self.put_successes(successes, issuer)
            self.put_successes(rest, issuer)
            return
        group = successes.incarnation, issuer
        batch = self._open.get(group)
        if batch is not None and batch.left + len(successes) <= MOST_IN_BATCH:
            assert isinstance(batch.content, SuccessBatch), "only successes are open"
            batch.content.extend(successes)
            batch.left += len(successes)
        else:
            batch = self._open[group] = _PendingBatch(successes, issuer, left=len(successes))
        self._pending.update(dict.fromkeys(successes.keys, batch))
        self._add(batch)

    def _add(self, batch: _PendingBatch) -> None:
        self._batches[batch] = None
        self._unspooled[batch] = None
        self._delivered.clear()
        self._spool_work.set()

    def release(self, result: pb.Result) -> None:
        batch = self._pending[key_of(result.key)]
        if batch.file is not None:
            batch.earlier = (*batch.earlier, batch.file)
        batch.content, batch.file, batch.held = result, None, False
        self._unspooled[batch] = None
        self._spool_work.set()

    def unanswered(self) -> Iterator[tuple[AssignmentKey, int]]:
        """Return the keys of all results that no member has answered, and their scheduled times in
        microseconds.
        """
        for batch in self._batches:
            content = self._left_of(batch)
            if isinstance(content, SuccessBatch):
                yield from zip(content.keys, content.scheduled, strict=True)
            else:
                yield key_of(content.key), microseconds(content.key.scheduled_at)

    def again(self, keys: Iterable[AssignmentKey]) -> None:
        """Send results again, except those sent within `RESEND_AFTER`: a member sent their
        assignments once more.
        """
        wanted: dict[_PendingBatch, set[AssignmentKey]] = {}
        for key in keys:
            if (batch := self._pending.get(key)) is not None:
                wanted.setdefault(batch, set()).add(key)
        now = boottime()
        for batch, named in wanted.items():
            if not self._may_go(batch):
                continue
            if batch.carrier is None:  # no stream has the batch
                self._send(batch)
            elif now - batch.sent >= RESEND_AFTER:
                self._send_again(batch, named, now)

    def _send_again(self, batch: _PendingBatch, named: set[AssignmentKey], now: float) -> None:
        resent = batch.resent or {}
        due = {key for key in named if key not in resent or now - resent[key] >= RESEND_AFTER}
        content = batch.content
        if not isinstance(content, SuccessBatch) or len(due) == batch.left:
            self._send(batch)
        elif due and (stream := self._choose(batch.issuer, None)) is not None:
            batch.resent = resent | dict.fromkeys(due, now)
            places = [place for place, key in enumerate(content.keys) if key in due]
            self._send_content(stream, content.only(places))

    def shut_down(self) -> None:
        """Shut down: from now on results that the disk rejects are sent without being spooled."""
        self._leaving = True

    def acknowledge(
        self, answers: Iterable[pb.Acknowledgement], batches: Iterable[pb.AckBatch] = ()
    ) -> None:
        accepted, stale = list[AssignmentKey](), list[AssignmentKey]()
        for answer in answers:
            if answer.verdict == pb.Acknowledgement.VERDICT_ACCEPTED:
                accepted.append(key_of(answer.key))
            elif answer.verdict == pb.Acknowledgement.VERDICT_STALE:
                stale.append(key_of(answer.key))
        for batch in batches:
            accepted += keys_of(batch.run_ids, batch.fencing_tokens)
        self._answered(accepted, "accepted")
        for key in self._answered(stale, "stale"):
            log.warning("result rejected as stale: run %s, token %d", *key, extra=key.log_fields)
        self._spool_work.set()
        self._check_delivered()

    def _answered(self, keys: Iterable[AssignmentKey], verdict: str) -> Sequence[AssignmentKey]:
        """Remove results. Return those that were sent and hadn't been answered."""
        found = []
        counted: dict[_PendingBatch, int] = {}
        for key in keys:
            batch = self._pending.get(key)
            if batch is None or (batch.file is None and not batch.sent):
                continue  # answered twice, by two members
            del self._pending[key]
            found.append(key)
            batch.left -= 1
            counted[batch] = counted.get(batch, 0) + 1
        for batch, count in counted.items():
            if batch.file is not None:
                self._done[batch.file] += count
            if not batch.left:
                self._remove_batch(batch)
        if found:
            self._on_acknowledged(found, verdict)
        return found

    def _remove_batch(self, batch: _PendingBatch) -> None:
        """Remove a batch without any unanswered result."""
        self._done.update(batch.earlier)
        batch.earlier = ()
        self._batches.pop(batch, None)
        self._unspooled.pop(batch, None)

    def attached(self, stream: MemberFrameQueue) -> None:
        self._streams.append(stream)
        for batch in self._batches:
            if batch.carrier is None and self._may_go(batch):
                self._send(batch)

    def detached(self, stream: MemberFrameQueue) -> None:
        """Remove a stream; send its results over another."""
        self._streams.remove(stream)
        for batch in self._batches:
            if batch.carrier is stream:
                batch.carrier = None
                self._send(batch)

    async def delivered(self) -> None:
        """Return when all results are acknowledged and removed from the spool."""
        await self._delivered.wait()

    async def keep_sending(self) -> NoReturn:
        while True:
            await asyncio.sleep(_TICK)
            now = boottime()
            for batch in self._batches:
                if now - batch.sent > batch.resend_after and self._may_go(batch):
                    batch.resend_after = min(batch.resend_after * 2, MAX_RESEND_AFTER)
                    self._send(batch, other_than=batch.carrier)

    async def keep_spooling(self) -> NoReturn:
        """Write new results and remove acknowledged ones, in batches, off the event loop."""
        backoff = Backoff(initial=0.1, maximum=5.0)
        while True:
            await self._spool_work.wait()
            self._spool_work.clear()
            try:
                await self._flush()
                if self._full:
                    await self._in_thread(self._spool.try_out)
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
        await self._write()
        if self._done or self._full or self._spool.unremoved:
            await self._with_done(self._spool.acknowledged)
        self._check_delivered()

    async def _write(self) -> None:
        while batches := self._next_file():
            count = sum([each.count for each in batches])
            try:
                await self._write_file(batches)
            except OSError:
                self._unspooled = dict.fromkeys(sorted(self._unspooled, key=_SIZE))
                if count == 1 and self._most == 1:
                    raise
                self._most = max(1, count // 2)
            else:
                self._most = min(self._most * 2, _MOST_AT_ONCE)

    def _next_file(self) -> list[_PendingBatch]:
        """Return the batches of the next file, `_most` results in total; split one if needed. All
        are batches of successes, or none is.
        """
        batches: list[_PendingBatch] = []
        room, count = _MOST_BYTES, self._most
        for batch in [*self._unspooled]:
            if not batch.left:
                self._remove_batch(batch)
                continue
            if batches and type(batch.content) is not type(batches[0].content):
                continue
            batch.content = self._left_of(batch)
            room -= batch.size
            if not count or (batches and room < 0):
                break
            if batch.count > count:
                self._split(batch, count)
            count -= batch.count
            batches.append(batch)
        for batch in batches:
            self._close(batch)
        return batches

    def _split(self, batch: _PendingBatch, count: int) -> None:
        """Leave `count` results in a batch of successes that isn't on disk. No member has answered
        any of its results.
        """
        assert isinstance(batch.content, SuccessBatch), "others have one result"
        self._close(batch)
        content = batch.content.split(count)
        rest = _PendingBatch(content, batch.issuer, left=len(content))
        rest.carrier, rest.sent, rest.resent = batch.carrier, batch.sent, batch.resent
        batch.left -= rest.left
        self._pending.update(dict.fromkeys(content.keys, rest))
        self._add(rest)

    def _close(self, batch: _PendingBatch) -> None:
        """Let no more successes join a batch."""
        if isinstance(batch.content, SuccessBatch):
            group = batch.content.incarnation, batch.issuer
            if self._open.get(group) is batch:
                del self._open[group]

    async def _write_file(self, batches: Sequence[_PendingBatch]) -> None:
        contents = [each.content for each in batches]
        frame = pb.WorkerFrame()
        for content in contents:
            if isinstance(content, SuccessBatch):
                frame.result_batches.append(content.message())
            else:
                frame.results.append(content)
        file = await self._with_done(partial(self._spool.write, frame))
        messages = frame.result_batches or repeat(None)
        for batch, content, message in zip(batches, contents, messages, strict=False):
            if not batch.left:  # members have answered all of it
                self._done[file] += batch.count
                self._unspooled.pop(batch, None)
            elif batch.content is not content:  # released meanwhile: the new one comes later
                batch.earlier = (*batch.earlier, file)
            else:
                del self._unspooled[batch]
                self._done.update(batch.earlier)
                self._done[file] += batch.count - batch.left
                batch.file, batch.earlier = file, ()
                self._send(batch, spooled=message)

    async def _with_done(self, call: Callable[[Mapping[Path, int]], T]) -> T:
        done = self._done.copy()
        try:
            return await self._in_thread(partial(call, done))
        finally:
            self._done -= done

    def _check_delivered(self) -> None:
        if not self._pending and not self._done:
            self._delivered.set()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Call in a separate thread: those of the loop may all wait for DNS."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _may_go(self, batch: _PendingBatch) -> bool:
        on_disk = batch.file is not None
        return not batch.held and (on_disk or (self._leaving and self._full != ""))

    def _send(
        self,
        batch: _PendingBatch,
        other_than: MemberFrameQueue | None = None,
        spooled: pb.ResultBatch | None = None,
    ) -> None:
        """Send a batch. `spooled`: its contents as a message, if that was created."""
        if batch.held:
            return
        self._close(batch)
        stream = self._choose(batch.issuer, other_than)
        batch.carrier = stream
        if stream is None:
            return
        batch.sent, batch.resent = boottime(), None
        content = self._left_of(batch)
        self._send_content(stream, content, spooled if content is batch.content else None)

    def _send_content(
        self,
        stream: MemberFrameQueue,
        content: pb.Result | SuccessBatch,
        message: pb.ResultBatch | None = None,
    ) -> None:
        if isinstance(content, SuccessBatch):
            stream.send_result_batch(message or content.message())
        else:
            stream.send_result(content)

    def _left_of(self, batch: _PendingBatch) -> pb.Result | SuccessBatch:
        """Return the contents of a batch without the results that members have answered."""
        content = batch.content
        if isinstance(content, SuccessBatch) and batch.left < len(content):
            pending = self._pending
            return content.only(
                [place for place, key in enumerate(content.keys) if pending.get(key) is batch]
            )
        return content

    def _choose(
        self, issuer: Address | None, other_than: MemberFrameQueue | None
    ) -> MemberFrameQueue | None:
        candidates = [each for each in self._streams if each is not other_than] or self._streams
        for stream in candidates:
            if stream.address == issuer:
                return stream
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)]


def _keys(content: pb.Result | SuccessBatch) -> Sequence[AssignmentKey]:
    return content.keys if isinstance(content, SuccessBatch) else [key_of(content.key)]
