"""Upload logs and results that are too large for a row, before the result is sent.

    ended ─┬─ all of it fits inline → the result is sent at once
           └─ else: the result is spooled and held → to disk → upload → sent, with the keys of the
                         uploads; after the timeout → sent, with the reason why they aren't kept

Invariants
- An unavailable store delays a result by its timeout (`config`) at most, and keeps no slot. If it
  has been unavailable for longer already, one upload is tried.
- All data is on disk before the upload begins, and then removed from memory.
- Waiting bytes are counted (`refusal_reason`). A hanging store gets at most `_AT_ONCE` calls, and
  no call prevents the shutdown of the process.
- A result names only data that is in the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.objects import Objects, log_key, result_key
from schedkit.records import dataclass
from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.config import WorkerResultStore
from workerd.core.ids import AssignmentKey
from workerd.core.outcome import MAX_RESULT, AttemptOutcome
from workerd.executors.handlers.invocation import fenced
from workerd.executors.handlers.threads import Threads
from workerd.logs.attempt_log import AttemptLogFolder, Recorded, Recording, write
from workerd.metrics import WorkerMetrics

log = logging.getLogger(__name__)

INTERRUPTED = "worker stopped before the upload"
MOST_IN_MEMORY: Final = 64 << 20
"""Bytes waiting for the disk from which the worker requests no new work."""
_MEBI = 1 << 20
_AT_ONCE: Final = 2
"""Concurrent calls of the store."""
_LEAST = 1.0
"""Minimum timeout of an upload, in seconds."""


@dataclass(slots=True)
class ResultFiles:
    """The data of an ended attempt to upload."""

    key: AssignmentKey
    namespace: str
    recording: Recording | None
    result: bytes | None
    """None once it is on disk."""
    json: bool = False

    @property
    def in_memory(self) -> int:
        recorded = 0 if self.recording is None else self.recording.in_memory
        return recorded + len(self.result or b"")


@dataclass(frozen=True, slots=True)
class _Upload:
    """A file to upload, and the field of the result that describes it."""

    kind: str
    key: str
    recorded: Recorded
    kept: run_pb2.StoredObject


class Backlog:
    """The bytes that wait for the result store, in memory and then on disk.

    Results of runs in hand are added even above a limit: nothing is discarded.
    """

    def __init__(self, *, memory: int, disk: int) -> None:
        """Set the limits, in bytes."""
        self._most_memory = memory
        self._most_disk = disk
        self.memory = 0
        self.disk = 0

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if there is room for its results."""
        for held, most, where in (
            (self.memory, self._most_memory, "in memory for the disk of the spool"),
            (self.disk, self._most_disk, "in the spool for the result store"),
        ):
            if held >= most:
                waiting = f"{held:,} bytes of logs and results wait {where}"
                return f"{waiting}: above the limit of {most:,} bytes"
        return ""

    @contextmanager
    def holding(self, *, memory: int = 0, disk: int = 0) -> Iterator[None]:
        """Count these bytes until the end of this context."""
        self.memory += memory
        self.disk += disk
        try:
            yield
        finally:
            self.memory -= memory
            self.disk -= disk


class ResultUpload:
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
        self._timeout = config.timeout.total_seconds()
        self._metrics = metrics
        self._threads = Threads("result store")
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._backlog = Backlog(memory=MOST_IN_MEMORY, disk=folder.limit // 2)
        self._away_since: float | None = None
        self._waits: set[asyncio.Timeout] = set()
        self._last: float | None = None
        """When all of them end, on the loop's clock."""
        self.most_result = max(config.result_mib * _MEBI, MAX_RESULT)
        """Maximum bytes of a returned value."""
        self.leaving = False
        """The worker is shutting down: no upload is retried."""

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if there is room for its results."""
        return self._backlog.refusal_reason

    def recording(self, key: AssignmentKey) -> Recording | None:
        return Recording(self._folder, key, self._most_log) if self._most_log else None

    def parcel(
        self,
        key: AssignmentKey,
        namespace: str,
        recording: Recording | None,
        outcome: AttemptOutcome,
    ) -> ResultFiles | None:
        """Return the data to upload; None if all of it fits inline."""
        whole = not any(piece.omitted for piece in outcome.output)
        content = outcome.result
        large = content is not None and len(content.data) > MAX_RESULT
        if (whole or recording is None) and not large:
            return None
        data = content.data if content is not None and large else None
        json = content is not None and content.json
        return ResultFiles(key, namespace, None if whole else recording, data, json)

    def unkept(self, parcel: ResultFiles, result: pb.Result) -> pb.Result:
        """Return the result to send if this worker stops before the upload."""
        held = pb.Result()
        held.CopyFrom(result)
        if parcel.recording is not None:
            held.log.problem = INTERRUPTED
        if parcel.result is not None:
            held.ClearField("result")
            held.stored_result.size = len(parcel.result)
            held.stored_result.problem = INTERRUPTED
            held.stored_result.json = parcel.json
        return held

    def hurry(self, within: float) -> None:
        """Shut down: data that isn't stored in so many seconds is reported as not kept."""
        self._last = asyncio.get_running_loop().time() + within
        for each in self._waits:
            each.reschedule(self._last)

    async def upload_result(self, parcel: ResultFiles, held: pb.Result) -> pb.Result:
        """Upload the data; return the result with the keys, or why it isn't kept."""
        kept = pb.Result()
        kept.CopyFrom(held)
        try:
            async with asyncio.timeout_at(self._last) as wait:
                self._waits.add(wait)
                try:
                    await self._all(parcel, kept)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            key = parcel.key
            log.warning(
                "upload timed out: the result of run %s is sent without its log or value",
                key.run,
                extra=key.log_fields,
            )
        return kept

    async def _all(self, parcel: ResultFiles, kept: pb.Result) -> None:
        until = boottime() + self._timeout
        with ExitStack() as counted:
            with self._backlog.holding(memory=parcel.in_memory):
                log, result = await self._log(parcel, kept.log), await self._result(parcel, kept)
                parcel.result = None
            uploads = [each for each in (log, result) if each is not None]
            for upload in uploads:
                counted.enter_context(self._backlog.holding(disk=upload.recorded.size))
            for upload in uploads:
                await self._stored(upload, until)

    async def _log(self, parcel: ResultFiles, kept: run_pb2.StoredObject) -> _Upload | None:
        """Write the rest of a log to disk; set its problem if it can't be written."""
        if (recording := parcel.recording) is None:
            return None
        kept.fencing_token = parcel.key.token
        try:
            recorded = await recording.finish()
        except OSError as error:
            kept.omitted, kept.problem = recording.omitted, str(error)
            await recording.discard()
            return None
        kept.omitted = recording.omitted
        key = log_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return _Upload("log", key, recorded, kept)

    async def _result(self, parcel: ResultFiles, result: pb.Result) -> _Upload | None:
        """Write a large result to disk; set its problem if it can't be written."""
        if (data := parcel.result) is None:
            return None
        kept = result.stored_result
        kept.fencing_token = parcel.key.token
        file = self._folder.file(parcel.key, "result")
        try:
            recorded = await self._folder.call(partial(write, self._folder, file, data))
        except OSError as error:
            kept.problem = f"the worker's spool rejects writes: {error.strerror or error}"
            return None
        key = result_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return _Upload("result", key, recorded, kept)

    async def _stored(self, upload: _Upload, until: float) -> None:
        recorded, kept = upload.recorded, upload.kept
        problem = await self._put(upload.key, recorded, until)
        kept.size, kept.sha256, kept.problem = recorded.size, recorded.sha256, problem
        if problem:
            log.warning("upload of a run's %s failed: %s", upload.kind, problem)
        self._metrics.uploads.labels(upload.kind, "failed" if problem else "stored").inc()
        await self._folder.call(lambda: self._folder.remove(recorded))

    async def _put(self, key: str, recorded: Recorded, until: float) -> str:
        """Upload with retries until the timeout. Return why it failed, or an empty text."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            why = await self._tried(key, recorded, until)
            now = boottime()
            if not why:
                self._away_since = None
                return ""
            away = self._away_since = self._away_since or now
            wait = backoff.next()
            if self.leaving or now - away > self._timeout or now + wait > until:
                return why
            await asyncio.sleep(wait)

    async def _tried(self, key: str, recorded: Recorded, until: float) -> str:
        try:
            async with asyncio.timeout(max(until - boottime(), _LEAST)):
                await self._free.acquire()
                await asyncio.shield(self._start_upload(key, recorded.file))
        except TimeoutError:
            return "the result store timed out"
        except (Unavailable, OSError) as error:
            return str(error)[:300]
        except Exception as error:  # a driver's own: no run may hang on it
            log.exception("result store driver failed")
            return f"{type(error).__name__}: {error}"[:300]
        return ""

    def _start_upload(self, key: str, file: Path) -> asyncio.Future[None]:
        """Start an upload in a thread. It continues if its caller stops waiting, and keeps its
        place until it ends.
        """
        try:
            put = self._threads.submit(partial(fenced, self._objects.put, key, file))
        except OSError:
            self._free.release()
            raise
        put.add_done_callback(lambda _: self._free.release())
        return put
