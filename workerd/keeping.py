"""What is too large for a row goes to the result store before its run's end is told.

    it has ended ─┬─ all of it fits inline → told at once
                  └─ else: its end is spooled, held back → upload → told, with what is where
                                `patience` is over → told, with why it isn't kept

Invariants
- A store that is away holds a run's end back for `patience` at most, and no slot meanwhile. Where
  it has been away for that long already, one try is all.
- A result is on disk before the upload begins: a worker that dies meanwhile loses the log, no end.
- What is told was in the store before it was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.objects import Objects, log_key, result_key
from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.config import Results
from workerd.core.ids import Key
from workerd.core.outcome import MAX_RESULT, Outcome
from workerd.executors.calling import fenced
from workerd.metrics import Metrics
from workerd.recording import Folder, Recorded, Recording, write

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERRUPTED = "its worker ended before it was stored"
_MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Parcel:
    """What of an attempt's end is to be stored."""

    key: Key
    namespace: str
    recording: Recording | None
    result: bytes | None
    json: bool = False


class Keeping:
    """One worker's way to the result store."""

    def __init__(self, objects: Objects, folder: Folder, config: Results, metrics: Metrics) -> None:
        self._objects = objects
        self._folder = folder
        self._most_log = config.log_mib * _MEBI
        self._patience = config.patience.total_seconds()
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="result store")
        self._away_since: float | None = None
        self.most_result = max(config.result_mib * _MEBI, MAX_RESULT)
        """Bytes that an attempt may return."""
        self.leaving = False
        """The worker shuts down: nothing is tried twice."""

    def recording(self, key: Key) -> Recording | None:
        """Of an attempt that is about to begin; None: logs aren't kept."""
        return Recording(self._folder, key, self._most_log) if self._most_log else None

    def parcel(
        self, key: Key, namespace: str, recording: Recording | None, outcome: Outcome
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

    async def keep(self, parcel: Parcel, told: pb.Result) -> pb.Result:
        """Store it; the end with what is where, or why it isn't."""
        until = boottime() + self._patience
        kept = pb.Result()
        kept.CopyFrom(told)
        if parcel.recording is not None:
            kept.log.CopyFrom(await self._log(parcel, parcel.recording, until))
        if parcel.result is not None:
            kept.kept_result.CopyFrom(await self._result(parcel, parcel.result, until))
        return kept

    async def _log(self, parcel: Parcel, recording: Recording, until: float) -> run_pb2.Kept:
        kept = run_pb2.Kept(fencing_token=parcel.key.token, omitted=recording.omitted)
        try:
            recorded = await recording.finish()
        except OSError as error:
            kept.problem = str(error)
            await recording.discard()
            return kept
        kept.omitted = recording.omitted
        key = log_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return await self._stored("log", key, recorded, kept, until)

    async def _result(self, parcel: Parcel, data: bytes, until: float) -> run_pb2.Kept:
        kept = run_pb2.Kept(fencing_token=parcel.key.token, size=len(data), json=parcel.json)
        file = self._folder.file(parcel.key, "result")
        try:
            recorded = await self._written(lambda: write(self._folder, file, data))
        except OSError as error:
            kept.problem = f"the worker's spool takes nothing: {error.strerror or error}"
            return kept
        key = result_key(parcel.namespace, parcel.key.run, parcel.key.token)
        return await self._stored("result", key, recorded, kept, until)

    async def _stored(
        self, what: str, key: str, recorded: Recorded, kept: run_pb2.Kept, until: float
    ) -> run_pb2.Kept:
        kept.size, kept.sha256 = recorded.size, recorded.sha256
        kept.problem = await self._put(key, recorded, until)
        if kept.problem:
            log.warning("the %s of a run isn't kept: %s", what, kept.problem)
        self._metrics.kept.labels(what, "away" if kept.problem else "stored").inc()
        await self._written(lambda: self._folder.remove(recorded))
        return kept

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
        loop = asyncio.get_running_loop()
        put = loop.run_in_executor(self._threads, fenced, self._objects.put, key, recorded.file)
        try:
            async with asyncio.timeout(max(until - boottime(), 1.0)):
                await put
        except TimeoutError:
            return "the result store doesn't answer"
        except (Unavailable, OSError) as error:
            return str(error)[:300]
        except Exception as error:  # a driver's own: no run may hang on it
            log.exception("a bug in the result store's driver")
            return f"{type(error).__name__}: {error}"[:300]
        return ""

    async def _written(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._folder.thread, call)
