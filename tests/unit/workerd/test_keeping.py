"""What waits for a result store that hangs: counted, bounded, and told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from schedkit.objects.files import Files
from schedproto.v1 import worker_service_pb2 as pb
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.config import WorkerResultStore
from workerd.core.backlog import Backlog
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Content
from workerd.delivery import result_upload as module
from workerd.delivery.result_upload import ResultFiles, ResultUpload
from workerd.logs.attempt_log import AttemptLogFolder
from workerd.metrics import WorkerMetrics

KIB = 1024


class Hanging(Files):
    """A store that takes nothing until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()
        self.calls: list[str] = []

    def put(self, key: str, source: Path) -> None:
        self.calls.append(key)
        self.goes_on.wait()
        super().put(key, source)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Hanging]:
    hanging = Hanging(tmp_path / "results")
    yield hanging
    hanging.goes_on.set()


@pytest.fixture
def folder(tmp_path: Path) -> AttemptLogFolder:
    return AttemptLogFolder(tmp_path / "kept", 1024 * KIB)


def keeping_of(store: Files, folder: AttemptLogFolder, timeout: float = 600.0) -> ResultUpload:
    config = WorkerResultStore(timeout=timedelta(seconds=timeout))
    return ResultUpload(store, folder, config, WorkerMetrics())


def large(keeping: ResultUpload, run: str, size: int) -> tuple[ResultFiles, pb.Result]:
    """An end with a large result, and as it would be told of a worker that died."""
    content = Content(b"x" * size, json=False)
    outcome = AttemptOutcome(AttemptVerdict.SUCCEEDED, result=content)
    parcel = keeping.parcel(AssignmentKey(RunId(run), Token(1)), "default", None, outcome)
    assert parcel is not None
    return parcel, keeping.unkept(parcel, pb.Result())


async def test_what_waits_for_a_store_that_hangs_is_on_disk_alone_and_past_a_limit_no_work_is_taken(
    store: Hanging, folder: AttemptLogFolder
) -> None:
    keeping = keeping_of(store, folder)
    parcels = [large(keeping, run, 300 * KIB) for run in "ab"]
    async with asyncio.TaskGroup() as group:
        first = group.create_task(keeping.upload_result(*parcels[0]))
        await wait_until_async(lambda: store.calls, WAIT_TIMEOUT, "the upload")
        assert parcels[0][0].result is None, "its bytes are in memory no more"
        assert keeping.refuses == ""
        second = group.create_task(keeping.upload_result(*parcels[1]))
        await wait_until_async(lambda: keeping.refuses, WAIT_TIMEOUT, "no new work")
        assert keeping.refuses == (
            "614,400 bytes of logs and results wait in the spool for the result store:"
            " above the limit of 524,288 bytes"
        )
        store.goes_on.set()
    for told in (first.result(), second.result()):
        assert (told.kept_result.size, told.kept_result.problem) == (300 * KIB, "")
    assert (keeping.refuses, folder.used) == ("", 0)


async def test_what_waits_for_a_disk_that_hangs_is_counted_too(
    store: Hanging, folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 100 * KIB)
    goes_on = threading.Event()
    folder.thread.submit(goes_on.wait)
    store.goes_on.set()
    keeping = keeping_of(store, folder)
    kept = asyncio.create_task(keeping.upload_result(*large(keeping, "a", 200 * KIB)))
    await wait_until_async(lambda: keeping.refuses, WAIT_TIMEOUT, "no new work")
    assert "in memory" in keeping.refuses
    goes_on.set()
    assert (await kept).kept_result.problem == ""
    assert keeping.refuses == ""


async def test_a_store_that_hangs_has_two_calls_and_no_more_however_many_ends_come(
    store: Hanging, folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST", 0.05)
    keeping = keeping_of(store, folder, timeout=0.0)
    for run in "abcd":
        told = await keeping.upload_result(*large(keeping, run, 100 * KIB))
        assert told.kept_result.problem == "result store timed out"
    assert len(store.calls) == 2
    assert (keeping.refuses, folder.used) == ("", 0)
    monkeypatch.undo()
    store.goes_on.set()
    told = await keeping.upload_result(*large(keeping, "e", 100 * KIB))
    assert told.kept_result.problem == ""


async def test_who_ends_tells_each_end_in_time_and_leaves_no_thread_that_must_be_waited_for(
    store: Hanging, folder: AttemptLogFolder
) -> None:
    keeping = keeping_of(store, folder)
    ends = [
        asyncio.create_task(keeping.upload_result(*large(keeping, run, 100 * KIB))) for run in "abc"
    ]
    await wait_until_async(lambda: len(store.calls) == 2, WAIT_TIMEOUT, "two uploads")
    keeping.hurry(0.0)
    late = keeping.upload_result(*large(keeping, "d", 100 * KIB))
    async with asyncio.timeout(WAIT_TIMEOUT):
        for told in [*await asyncio.gather(*ends), await late]:
            assert told.kept_result.size == 100 * KIB
            assert told.kept_result.problem == module.INTERRUPTED
    threads = [each for each in threading.enumerate() if each.name.startswith("result store")]
    assert len(threads) >= 2
    assert all(each.daemon for each in threads)


@pytest.mark.parametrize(
    ("memory", "disk", "full"), [(9, 99, False), (10, 0, True), (0, 100, True)]
)
def test_a_backlog_counts_in_and_out_whatever_happens(memory: int, disk: int, full: bool) -> None:
    backlog = Backlog(memory=10, disk=100)
    with contextlib.suppress(OSError), backlog.in_memory(memory), backlog.on_disk(disk):
        assert bool(backlog.refuses) is full
        raise OSError
    assert (backlog.memory, backlog.disk, backlog.refuses) == (0, 0, "")
