"""What is too large for a row goes to the result store before its run's end is told.

    it has ended ─┬─ all of it fits inline → told at once
                  └─ else: its end is spooled, held back → to disk → upload → told, with what is
                                where; `patience` is over → told, with why it isn't kept

Invariants
- A store that is away holds a run's end back for `patience` at most, and no slot meanwhile. Where
  it has been away for that long already, one try is all.
- All of it is on disk before the upload begins, and then in memory no more.
- What waits is counted (`refuses`). A store that hangs has `_AT_ONCE` calls, not one more, and no
  call keeps the process from ending.
- What is told was in the store before it was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.objects import Objects, log_key, result_key
from schedkit.records import dataclass
from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.config import WorkerResultStore
from workerd.core.backlog import Backlog
from workerd.core.ids import AssignmentKey
from workerd.core.outcome import MAX_RESULT, AttemptOutcome
from workerd.executors.handlers.invocation import fenced
from workerd.executors.handlers.threads import Threads
from workerd.logs.attempt_log import AttemptLogFolder, Recorded, Recording, write
from workerd.metrics import WorkerMetrics

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERRUPTED = "its worker ended before it was stored"
MOST_IN_MEMORY: Final = 64 << 20
"""Bytes that wait for the disk, past which no new work is asked for."""
_MEBI = 1 << 20
_AT_ONCE: Final = 2
"""Calls of the store."""
_LEAST = 1.0
"""Seconds that a try has."""


@dataclass(slots=True)
class Parcel:
    """What of an attempt's end is to be stored."""

    key: AssignmentKey
    namespace: str
    recording: Recording | None
    result: bytes | None
    """Until it is on disk."""
    json: bool = False

    @property
    def in_memory(self) -> int:
        """Bytes of it that aren't on disk."""
        recorded = 0 if self.recording is None else self.recording.in_memory
        return recorded + len(self.result or b"")


@dataclass(frozen=True, slots=True)
class _Upload:
    """A file for the store, and where the end tells of it."""

    what: str
    key: str
    recorded: Recorded
    told: run_pb2.Kept


class ResultUpload:
    """One worker's way to the result store."""

    def __init__(
        self,
        objects: Objects,
        folder: AttemptLogFolder,
        config: WorkerResultStore,
        metrics: WorkerMetrics,
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._most_log = config.log_mib * _MEBI
        self._patience = config.patience.total_seconds()
        self._metrics = metrics
        self._threads = Threads("result store")
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._backlog = Backlog(memory=MOST_IN_MEMORY, disk=folder.limit // 2)
        self._away_since: float | None = None
        self._waits: set[asyncio.Timeout] = set()
        self._last: float | None = None
        """On the loop's clock, when all of them end."""
        self.most_result = max(config.result_mib * _MEBI, MAX_RESULT)
        """Bytes that an attempt may return."""
        self.leaving = False
        """The worker shuts down: nothing is tried twice."""

    @property
    def refuses(self) -> str:
        """Why no new work may be asked for, in words; empty: what it gives would find room."""
        return self._backlog.refuses

    def recording(self, key: AssignmentKey) -> Recording | None:
        """Of an attempt that is about to begin; None: logs aren't kept."""
        return Recording(self._folder, key, self._most_log) if self._most_log else None

    def parcel(
        self,
        key: AssignmentKey,
        namespace: str,
        recording: Recording | None,
        outcome: AttemptOutcome,
    ) -> Parcel | None:
        """What is to be stored of it; None: it all fits inline."""
        whole = not any(piece.omitted for piece in outcome.output)
        content = outcome.result
        large = content is not None and len(content.data) > MAX_RESULT
        if (whole or recording is None) and not large:
            return None
        data = content.data if content is not None and large else None
        json = content is not None and content.json
        return Parcel(key, namespace, None if whole else recording, data, json)

    def unkept(self, parcel: Parcel, result: pb.Result) -> pb.Result:
        """The end as it is told if this worker dies now."""
        told = pb.Result()
        told.CopyFrom(result)
        if parcel.recording is not None:
            told.log.problem = INTERRUPTED
        if parcel.result is not None:
            told.ClearField("result")
            told.kept_result.size = len(parcel.result)
            told.kept_result.problem = INTERRUPTED
            told.kept_result.json = parcel.json
        return told

    def hurry(self, within: float) -> None:
        """The worker ends: what isn't stored in so many seconds is told as lost."""
        self._last = asyncio.get_running_loop().time() + within
        for each in self._waits:
            each.reschedule(self._last)

    async def keep(self, parcel: Parcel, told: pb.Result) -> pb.Result:
        """Store it; the end with what is where, or why it isn't."""
        kept = pb.Result()
        kept.CopyFrom(told)
        try:
            async with asyncio.timeout_at(self._last) as wait:
                self._waits.add(wait)
                try:
                    await self._all(parcel, kept)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            key = parcel.key
            log.warning("the end of run %s is told without all of it", key.run, extra=key.said)
        return kept

    async def _all(self, parcel: Parcel, kept: pb.Result) -> None:
        until = boottime() + self._patience
        with ExitStack() as counted:
            uploads = await self._spooled(parcel, kept)
            for upload in uploads:
                counted.enter_context(self._backlog.on_disk(upload.recorded.size))
            for upload in uploads:
                await self._stored(upload, until)

    async def _spooled(self, parcel: Parcel, kept: pb.Result) -> list[_Upload]:
        """What is on disk of it now; of the rest the end tells why it isn't."""
        uploads = []
        with self._backlog.in_memory(parcel.in_memory):
            if parcel.recording is not None:
                uploads.append(await self._log(parcel, parcel.recording, kept.log))
            if parcel.result is not None:
                uploads.append(await self._result(parcel, parcel.result, kept.kept_result))
            parcel.result = None
        return [each for each in uploads if each is not None]

    async def _log(
        self, parcel: Parcel, recording: Recording, told: run_pb2.Kept
    ) -> _Upload | None:
        told.fencing_token = parcel.key.token
        try:
            recorded = await recording.finish()
        except OSError as error:
            told.omitted, told.problem = recording.omitted, str(error)
            await recording.discard()
            return None
        told.omitted = recording.omitted
        key = log_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return _Upload("log", key, recorded, told)

    async def _result(self, parcel: Parcel, data: bytes, told: run_pb2.Kept) -> _Upload | None:
        told.fencing_token = parcel.key.token
        file = self._folder.file(parcel.key, "result")
        try:
            recorded = await self._written(partial(write, self._folder, file, data))
        except OSError as error:
            told.problem = f"the worker's spool takes nothing: {error.strerror or error}"
            return None
        key = result_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return _Upload("result", key, recorded, told)

    async def _stored(self, upload: _Upload, until: float) -> None:
        recorded, told = upload.recorded, upload.told
        problem = await self._put(upload.key, recorded, until)
        told.size, told.sha256, told.problem = recorded.size, recorded.sha256, problem
        if problem:
            log.warning("the %s of a run isn't kept: %s", upload.what, problem)
        self._metrics.kept.labels(upload.what, "away" if problem else "stored").inc()
        await self._written(lambda: self._folder.remove(recorded))

    async def _put(self, key: str, recorded: Recorded, until: float) -> str:
        """Try until it is there, or there is no more patience; why it isn't, or nothing."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            why = await self._tried(key, recorded, until)
            now = boottime()
            if not why:
                self._away_since = None
                return ""
            away = self._away_since = self._away_since or now
            wait = backoff.next()
            if self.leaving or now - away > self._patience or now + wait > until:
                return why
            await asyncio.sleep(wait)

    async def _tried(self, key: str, recorded: Recorded, until: float) -> str:
        try:
            async with asyncio.timeout(max(until - boottime(), _LEAST)):
                await self._free.acquire()
                await asyncio.shield(self._begun(key, recorded.file))
        except TimeoutError:
            return "the result store doesn't answer"
        except (Unavailable, OSError) as error:
            return str(error)[:300]
        except Exception as error:  # a driver's own: no run may hang on it
            log.exception("a bug in the result store's driver")
            return f"{type(error).__name__}: {error}"[:300]
        return ""

    def _begun(self, key: str, file: Path) -> asyncio.Future[None]:
        """A call of the store, in a thread. It goes on when nobody waits any more, and until it
        ends no other has its place.
        """
        try:
            put = self._threads.submit(partial(fenced, self._objects.put, key, file))
        except OSError:
            self._free.release()
            raise
        put.add_done_callback(lambda _: self._free.release())
        return put

    async def _written(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._folder.thread, call)
