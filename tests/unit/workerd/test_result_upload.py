"""Results that wait for a hanging result store: counted, bounded and reported."""

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
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Content
from workerd.delivery import result_upload as module
from workerd.delivery.result_upload import Backlog, ResultFiles, ResultUpload
from workerd.logs.attempt_log import AttemptLogFolder
from workerd.metrics import WorkerMetrics

KIB = 1024


class Hanging(Files):
    """A store that blocks each upload until `resume` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.resume = threading.Event()
        self.calls: list[str] = []

    def put(self, key: str, source: Path) -> None:
        self.calls.append(key)
        self.resume.wait()
        super().put(key, source)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Hanging]:
    hanging = Hanging(tmp_path / "results")
    yield hanging
    hanging.resume.set()


@pytest.fixture
def folder(tmp_path: Path) -> AttemptLogFolder:
    return AttemptLogFolder(tmp_path / "kept", 1024 * KIB)


def keeping_of(store: Files, folder: AttemptLogFolder, timeout: float = 600.0) -> ResultUpload:
    config = WorkerResultStore(timeout=timedelta(seconds=timeout))
    return ResultUpload(store, folder, config, WorkerMetrics())


def large(keeping: ResultUpload, run: str, size: int) -> tuple[ResultFiles, pb.Result]:
    """Return an ended attempt with a large result, and its result as a lost worker reports it."""
    content = Content(b"x" * size, json=False)
    outcome = AttemptOutcome(AttemptVerdict.SUCCEEDED, result=content)
    parcel = keeping.parcel(AssignmentKey(RunId(run), Token(1)), "default", None, outcome)
    assert parcel is not None
    return parcel, keeping.unkept(parcel, pb.Result())


async def test_results_for_a_hanging_store_are_only_on_disk_and_past_a_limit_no_work_is_accepted(
    store: Hanging, folder: AttemptLogFolder
) -> None:
    keeping = keeping_of(store, folder)
    parcels = [large(keeping, run, 300 * KIB) for run in "ab"]
    async with asyncio.TaskGroup() as group:
        first = group.create_task(keeping.upload_result(*parcels[0]))
        await wait_until_async(lambda: store.calls, WAIT_TIMEOUT, "the upload")
        assert parcels[0][0].result is None, "its bytes are in memory no more"
        assert keeping.refusal_reason == ""
        second = group.create_task(keeping.upload_result(*parcels[1]))
        await wait_until_async(lambda: keeping.refusal_reason, WAIT_TIMEOUT, "no new work")
        assert keeping.refusal_reason == (
            "614,400 bytes of logs and results wait in the spool for the result store:"
            " above the limit of 524,288 bytes"
        )
        store.resume.set()
    for stored in (first.result(), second.result()):
        assert (stored.stored_result.size, stored.stored_result.problem) == (300 * KIB, "")
    assert (keeping.refusal_reason, folder.used) == ("", 0)


async def test_results_for_a_hanging_disk_are_counted(
    store: Hanging, folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 100 * KIB)
    resume = threading.Event()
    folder.thread.submit(resume.wait)
    store.resume.set()
    keeping = keeping_of(store, folder)
    kept = asyncio.create_task(keeping.upload_result(*large(keeping, "a", 200 * KIB)))
    await wait_until_async(lambda: keeping.refusal_reason, WAIT_TIMEOUT, "no new work")
    assert "in memory" in keeping.refusal_reason
    resume.set()
    assert (await kept).stored_result.problem == ""
    assert keeping.refusal_reason == ""


async def test_a_hanging_store_gets_two_calls_for_any_number_of_ends(
    store: Hanging, folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST", 0.05)
    keeping = keeping_of(store, folder, timeout=0.0)
    for run in "abcd":
        stored = await keeping.upload_result(*large(keeping, run, 100 * KIB))
        assert stored.stored_result.problem == "the result store timed out"
    assert len(store.calls) == 2
    assert (keeping.refusal_reason, folder.used) == ("", 0)
    monkeypatch.undo()
    store.resume.set()
    stored = await keeping.upload_result(*large(keeping, "e", 100 * KIB))
    assert stored.stored_result.problem == ""


async def test_a_stop_reports_each_end_in_time_and_leaves_no_thread_to_wait_for(
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
        for stored in [*await asyncio.gather(*ends), await late]:
            assert stored.stored_result.size == 100 * KIB
            assert stored.stored_result.problem == module.INTERRUPTED
    threads = [each for each in threading.enumerate() if each.name.startswith("result store")]
    assert len(threads) >= 2
    assert all(each.daemon for each in threads)


@pytest.mark.parametrize(
    ("memory", "disk", "full"), [(9, 99, False), (10, 0, True), (0, 100, True)]
)
def test_a_backlog_returns_to_zero_after_an_error(memory: int, disk: int, full: bool) -> None:
    backlog = Backlog(memory=10, disk=100)
    with contextlib.suppress(OSError), backlog.holding(memory=memory, disk=disk):
        assert bool(backlog.refusal_reason) is full
        raise OSError
    assert (backlog.memory, backlog.disk, backlog.refusal_reason) == (0, 0, "")
