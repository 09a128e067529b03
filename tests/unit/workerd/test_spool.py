"""The spool on a real directory."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from schedkit.errors import Misconfigured, NotNow
from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.unanswered import results_of
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.ids import Address
from workerd.delivery.result_sender import LOG_EVERY, ResultSender
from workerd.delivery.spool import Spool
from workerd.messages import key_of


def result(run: str, size: int = 0) -> pb.Result:
    """Return a result with `size` bytes of output."""
    output = [run_pb2.LogPiece(data=b"x" * size)] if size else []
    return pb.Result(key=pb.AssignmentKey(run_id=run, fencing_token=1), output=output)


def frame(*runs: str) -> pb.WorkerFrame:
    return pb.WorkerFrame(results=map(result, runs))


def accepted(*runs: str) -> list[pb.Acknowledgement]:
    verdict = pb.Acknowledgement.VERDICT_ACCEPTED
    return [pb.Acknowledgement(key=result(run).key, verdict=verdict) for run in runs]


def names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


class Recorder:
    """A stream that records sent results."""

    address = Address("m1:7420")

    def __init__(self) -> None:
        self.sent: list[pb.Result] = []

    def send_result(self, result: pb.Result) -> None:
        self.sent.append(result)

    @property
    def runs(self) -> set[str]:
        return {each.key.run_id for each in self.sent}


class Disk:
    """A disk with `room` bytes: a longer file can't be synced."""

    room = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode) and os.fstat(fd).st_size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._sync(fd)


def test_a_locked_spool_names_the_process_that_holds_it(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    with pytest.raises(Misconfigured) as found:
        Spool(tmp_path)
    assert f", process {os.getpid()} on host {socket.gethostname()}: end that" in str(found.value)
    (tmp_path / "lock").write_text("")  # of an earlier version
    with pytest.raises(Misconfigured, match="another worker: end its process"):
        Spool(tmp_path)
    first.close()


def test_written_results_are_loaded_by_the_next_process_in_order(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.write(frame("a", "b"))
    first.write(frame("c"))
    first.close()
    second = Spool(tmp_path)
    assert second.id == first.id
    loaded = second.load()
    assert [each.key.run_id for _, batch in loaded for each in batch.results] == ["a", "b", "c"]
    assert second.write(frame("d")).name > loaded[-1][0].name


def test_a_batch_and_its_name_are_synced_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: a crash of the host loses no result that was sent."""
    spool = Spool(tmp_path)
    done: list[str] = []
    sync, put = os.fsync, Path.replace

    def fsync(fd: int) -> None:
        done.append("folder" if Path(f"/proc/self/fd/{fd}").resolve() == tmp_path else "file")
        sync(fd)

    def replace(path: Path, to: Path) -> Path:
        done.append("renamed")
        return put(path, to)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    spool.write(frame("a"))
    assert done == ["file", "renamed", "folder"]


def test_a_batch_is_private_to_the_worker_in_a_readable_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert (spool.write(frame("a")).stat().st_mode & 0o777) == 0o600
    assert (spool.directory.stat().st_mode & 0o777) == 0o711


def test_a_batch_is_removed_with_its_last_result(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.write(frame("a", "b"))
    spool.acknowledged({file: 1})
    assert file.exists()
    spool.acknowledged({file: 1})
    assert not file.exists()


async def test_nothing_is_sent_before_it_is_on_disk(tmp_path: Path) -> None:
    """W2: a worker killed in between would have reported a result that is stored nowhere."""
    spool, sent = Spool(tmp_path), list[list[pb.Result]]()

    class Looking:
        """A stream that reads the disk when a result is sent."""

        address = Address("m1:7420")

        def send_result(self, _result: pb.Result) -> None:
            sent.append([each for _, batch in spool.load() for each in batch.results])

    courier = ResultSender(spool, lambda _key, _verdict: None)
    courier.attached(Looking())
    spooling = asyncio.create_task(courier.keep_spooling())
    courier.put(result("a"), None)
    await wait_until_async(lambda: sent, WAIT_TIMEOUT, "it to be sent")
    assert sent == [[result("a")]]
    spooling.cancel()


def test_the_spool_size_is_the_total_size_of_its_files(tmp_path: Path) -> None:
    """W2: a spool that is never emptied must not fill the disk."""
    spool = Spool(tmp_path)
    files = [spool.write(frame("a")), spool.write(frame("b", "c"))]
    assert spool.size == sum(file.stat().st_size for file in files)
    spool.close()
    second = Spool(tmp_path)
    second.load()
    assert second.size == spool.size
    second.acknowledged({files[0]: 1, files[1]: 2})
    assert second.size == 0


async def test_a_full_spool_requests_no_work_and_still_stores_results(tmp_path: Path) -> None:
    """W2: running runs must be able to report."""
    spool = Spool(tmp_path)
    courier = ResultSender(spool, lambda _key, _verdict: None, limit=1)
    spooling = asyncio.create_task(courier.keep_spooling())
    assert courier.refusal_reason == ""
    courier.put(result("a"), None)
    await wait_until_async(lambda: courier.refusal_reason, WAIT_TIMEOUT, "it to be full")
    courier.put(result("b"), None)
    await wait_until_async(
        lambda: len(spool.load()) == 2, WAIT_TIMEOUT, "the second to be stored too"
    )
    spooling.cancel()


async def test_a_file_that_couldnt_be_removed_is_removed_later_and_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: otherwise a disk that fails for a moment leaves the spool full for ever."""
    spool = Spool(tmp_path)
    courier = ResultSender(spool, lambda _key, _verdict: None, limit=1)
    spooling = asyncio.create_task(courier.keep_spooling())
    remove, fails = Path.unlink, [OSError("input/output error")]

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".results" and fails:
            raise fails.pop()
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    for run in ("a", "b"):
        courier.put(result(run), None)
        await wait_until_async(lambda: not courier._unspooled, WAIT_TIMEOUT, "it to be on disk")
    answers = [
        pb.Acknowledgement(key=result(run).key, verdict=pb.Acknowledgement.VERDICT_ACCEPTED)
        for run in ("a", "b")
    ]
    courier.acknowledge(answers)
    async with asyncio.timeout(WAIT_TIMEOUT):
        await courier.delivered()
    assert (spool.size, spool.load(), fails) == (0, [], []), "then its worker may end"
    await wait_until_async(lambda: not courier.refusal_reason, WAIT_TIMEOUT, "it to be empty")
    spooling.cancel()


async def test_a_disk_that_rejects_writes_is_reported_until_it_accepts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = ResultSender(Spool(tmp_path), lambda _key, _verdict: None)
    spooling = asyncio.create_task(courier.keep_spooling())
    sync, full = os.fsync, [True]

    def fsync(fd: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    courier.put(result("a"), None)
    await wait_until_async(
        lambda: courier.refusal_reason, WAIT_TIMEOUT, "the disk to be found full"
    )
    assert courier.refusal_reason == "spool rejects writes: No space left on device"
    full.clear()
    await wait_until_async(
        lambda: not courier.refusal_reason, WAIT_TIMEOUT, "it to take results again"
    )
    spooling.cancel()


@pytest.mark.slow
async def test_a_full_disk_is_logged_once_and_new_room_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any number of tries makes one line."""
    caplog.set_level(logging.INFO, "workerd.delivery.result_sender")
    spool, disk = Spool(tmp_path), Disk(monkeypatch)
    tries, now, trial = 0, 1000.0, spool.try_out

    def try_out() -> None:
        nonlocal tries
        tries += 1
        trial()

    async def tried(times: int) -> None:
        goal = tries + times
        await wait_until_async(lambda: tries >= goal, WAIT_TIMEOUT, "it to be tried again")

    monkeypatch.setattr(Spool, "try_out", lambda _: try_out())
    monkeypatch.setattr("workerd.delivery.result_sender.boottime", lambda: now)
    courier = ResultSender(spool, lambda _key, _verdict: None)
    courier.load()
    spooling = asyncio.create_task(courier.keep_spooling())
    full = (
        "spool rejects writes: [Errno 28] No space left on device;"
        " no new work is requested until it accepts them"
    )
    await tried(3)
    assert caplog.messages == [full]
    now += LOG_EVERY
    await tried(2)
    assert caplog.messages == [full, full]
    disk.room = 1 << 20
    await wait_until_async(
        lambda: not courier.refusal_reason, WAIT_TIMEOUT, "it to take results again"
    )
    assert caplog.messages == [
        full,
        full,
        "spool accepts writes again; new work is requested",
    ]
    spooling.cancel()


def test_foreign_files_are_kept_and_logged_with_their_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker starts with any files in its spool, and delivers the results in it."""
    spool = Spool(tmp_path)
    spool.write(frame("a"))
    (tmp_path / "zzz.results").write_bytes(b"garbage")
    (tmp_path / "000000000003.results").mkdir()
    (tmp_path / "000000000004.results").touch()
    [(_, found)] = spool.load()
    [loaded] = found.results
    assert loaded.key.run_id == "a"
    assert {path.name for path in tmp_path.glob("*.*")} == {
        "zzz.results",
        "000000000001.results",
        "000000000003.results",
        "000000000004.damaged",
    }
    for name in ("zzz.results", "000000000003.results", "000000000004.results"):
        assert str(tmp_path / name) in caplog.text


def test_an_invalid_id_is_rejected(tmp_path: Path) -> None:
    """Otherwise two workers with the same foreign text would count as one."""
    Spool(tmp_path).close()
    (tmp_path / "spool_id").write_bytes(b"notauuid\xff")
    with pytest.raises(
        Misconfigured, match=r"spool_id must contain the worker's id, but contains 'notauuid"
    ):
        Spool(tmp_path)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(Misconfigured, match="in use"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_a_partly_written_file_isnt_loaded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (tmp_path / "000000000009.results.new").write_bytes(b"half")
    assert spool.load() == []


async def test_a_held_result_is_on_disk_and_sent_as_released(
    tmp_path: Path,
) -> None:
    """W2: the details may wait for the result store; the end itself is safe."""
    spool, sent = Spool(tmp_path), list[pb.Result]()

    class Recorder:
        address = Address("m1:7420")

        def send_result(self, result: pb.Result) -> None:
            sent.append(result)

    def files() -> list[Path]:
        return [*tmp_path.glob("*.results")]

    courier = ResultSender(spool, lambda _key, _verdict: None)
    courier.attached(Recorder())
    spooling = asyncio.create_task(courier.keep_spooling())
    held, released = result("a"), result("a")
    held.log.problem, released.log.size = "not yet", 5
    courier.put(held, None, held=True)
    [first] = await wait_until_async(files, WAIT_TIMEOUT, "it to be on disk")
    courier.again([key_of(held.key)])
    assert results_of(courier) == [held]
    assert not sent
    courier.release(released)
    await wait_until_async(lambda: sent, WAIT_TIMEOUT, "it to be sent")
    assert sent == [released]
    await wait_until_async(lambda: not first.exists(), WAIT_TIMEOUT, "the first copy to go")
    assert [each for _, batch in spool.load() for each in batch.results] == [released]
    spooling.cancel()


async def test_the_later_of_two_copies_is_sent_after_a_restart(tmp_path: Path) -> None:
    """W2: the second copy was written with more information."""
    spool = Spool(tmp_path)
    first, second = result("a"), result("a")
    second.log.size = 5
    files = [spool.write(pb.WorkerFrame(results=[each])) for each in (first, second)]
    spool.close()
    courier = ResultSender(Spool(tmp_path), lambda _key, _verdict: None)
    courier.load()
    assert results_of(courier) == [second]
    spooling = asyncio.create_task(courier.keep_spooling())
    courier.acknowledge([])
    await wait_until_async(lambda: not files[0].exists(), WAIT_TIMEOUT, "the first copy to go")
    assert files[1].exists()
    spooling.cancel()


async def test_a_result_released_during_its_write_is_written_again_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: a batch that counts a result twice would stay for good."""
    spool, write = Spool(tmp_path), Spool.write
    courier = ResultSender(spool, lambda _key, _verdict: None)
    loop, words = asyncio.get_running_loop(), [result("a"), result("a")]
    words[0].log.size, words[1].log.size = 1, 2

    def writing(self: Spool, frame: pb.WorkerFrame, done: Mapping[Path, int]) -> Path:
        if words:
            released = words.pop()
            asyncio.run_coroutine_threadsafe(release(released), loop).result(WAIT_TIMEOUT)
        return write(self, frame, done)

    async def release(released: pb.Result) -> None:
        courier.release(released)

    monkeypatch.setattr(Spool, "write", writing)
    courier.put(result("a"), None, held=True)
    courier.release(result("a"))
    spooling = asyncio.create_task(courier.keep_spooling())
    await wait_until_async(lambda: not courier._unspooled, WAIT_TIMEOUT, "it to be on disk")
    accepted = pb.Acknowledgement.VERDICT_ACCEPTED
    courier.acknowledge([pb.Acknowledgement(key=result("a").key, verdict=accepted)])
    async with asyncio.timeout(WAIT_TIMEOUT):
        await courier.delivered()
    assert (spool.size, spool.load()) == (0, [])
    spooling.cancel()


async def test_results_that_the_disk_rejects_at_shutdown_are_sent_unstored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: otherwise they are lost, and their runs start again."""
    courier, stream = ResultSender(Spool(tmp_path), lambda _key, _verdict: None), Recorder()
    disk = Disk(monkeypatch)
    courier.attached(stream)
    courier.put(result("a"), None)
    courier.put(result("b"), None, held=True)
    async with asyncio.TaskGroup() as group:
        loops = [courier.keep_spooling(), courier.keep_sending()]
        tasks = [group.create_task(each) for each in loops]
        await wait_until_async(
            lambda: courier.refusal_reason, WAIT_TIMEOUT, "the disk to be found full"
        )
        courier.acknowledge(accepted("a"))
        assert (stream.sent, len(courier)) == ([], 2), "no member can have the result yet"
        courier.shut_down()
        await wait_until_async(lambda: stream.sent, WAIT_TIMEOUT, "it to be sent")
        assert stream.runs == {"a"}, "the held result must not be sent yet"
        released = result("b", 5)
        courier.release(released)
        await wait_until_async(
            lambda: released in stream.sent, WAIT_TIMEOUT, "that to be sent, too"
        )
        assert courier.count_remaining == (0, 2)
        courier.acknowledge(accepted("a", "b"))
        async with asyncio.timeout(WAIT_TIMEOUT):
            await courier.delivered()
        disk.room = 1 << 30
        await wait_until_async(lambda: not courier.refusal_reason, WAIT_TIMEOUT, "room")
        for task in tasks:
            task.cancel()
    assert names(tmp_path, "*.results") == []


async def test_an_unstored_result_counts_as_lost_and_an_older_copy_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = ResultSender(Spool(tmp_path), lambda _key, _verdict: None)
    spooling = asyncio.create_task(courier.keep_spooling())
    for run in ("kept", "released later"):
        courier.put(result(run), None, held=True)
    await wait_until_async(
        lambda: courier.count_remaining == (2, 0), WAIT_TIMEOUT, "both to be on disk"
    )
    disk = Disk(monkeypatch)
    courier.put(result("lost"), None)
    courier.release(result("released later", 5))
    await wait_until_async(
        lambda: courier.refusal_reason, WAIT_TIMEOUT, "the disk to be found full"
    )
    assert courier.count_remaining == (2, 1)
    assert names(tmp_path, "*.results") == ["000000000001.results"]
    disk.room = 1 << 30
    await wait_until_async(
        lambda: courier.count_remaining == (3, 0), WAIT_TIMEOUT, "all to be on disk"
    )
    spooling.cancel()


async def test_a_batch_without_room_is_split_and_the_fitting_part_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: otherwise none of it is ever sent, and the worker takes no work for good."""
    disk = Disk(monkeypatch)
    disk.room = 10_000
    courier, stream = ResultSender(Spool(tmp_path), lambda _key, _verdict: None), Recorder()
    courier.attached(stream)
    courier.put(result("large", 20_000), None)
    small = {f"small {number}" for number in range(20)}
    for run in small:
        courier.put(result(run, 3_000), None)
    spooling = asyncio.create_task(courier.keep_spooling())
    await wait_until_async(lambda: stream.runs == small, WAIT_TIMEOUT, "what fits to be sent")
    await wait_until_async(
        lambda: courier.refusal_reason, WAIT_TIMEOUT, "the disk to be found full"
    )
    assert courier.count_remaining == (20, 1)
    disk.room = 1 << 30
    await wait_until_async(lambda: "large" in stream.runs, WAIT_TIMEOUT, "the rest to be sent")
    await wait_until_async(
        lambda: not courier.refusal_reason, WAIT_TIMEOUT, "it to take work again"
    )
    courier.acknowledge(accepted(*stream.runs))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await courier.delivered()
    assert names(tmp_path, "*.results") == []
    spooling.cancel()


async def test_acknowledged_results_are_removed_from_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: removal is what makes room."""
    courier, stream = ResultSender(Spool(tmp_path), lambda _key, _verdict: None), Recorder()
    courier.attached(stream)
    spooling = asyncio.create_task(courier.keep_spooling())
    courier.put(result("a"), None)
    await wait_until_async(lambda: stream.sent, WAIT_TIMEOUT, "it to be sent")
    Disk(monkeypatch)
    courier.put(result("b"), None)
    await wait_until_async(
        lambda: courier.refusal_reason, WAIT_TIMEOUT, "the disk to be found full"
    )
    courier.acknowledge(accepted("a"))
    await wait_until_async(
        lambda: not names(tmp_path, "*.results"), WAIT_TIMEOUT, "what was stored to go"
    )
    assert courier.refusal_reason
    spooling.cancel()


async def test_a_batch_has_a_mebibyte_at_most_or_one_result(tmp_path: Path) -> None:
    """Disk and memory take batches of any size one after the other."""
    spool = Spool(tmp_path)
    courier = ResultSender(spool, lambda _key, _verdict: None)
    for number in range(30):
        courier.put(result(f"{number}", 100_000), None)
    courier.put(result("huge", 3 << 20), None)
    spooling = asyncio.create_task(courier.keep_spooling())
    await wait_until_async(
        lambda: courier.count_remaining == (31, 0), WAIT_TIMEOUT, "all to be on disk"
    )
    batches = [batch.results for _, batch in spool.load()]
    assert sorted(len(each) for each in batches) == [1, 10, 10, 10]
    spooling.cancel()


async def test_a_full_disk_is_found_before_the_first_hello_and_retried_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: otherwise the worker takes work whose results find no room."""
    spool = Spool(tmp_path)
    disk = Disk(monkeypatch)
    disk.room = 1000
    courier = ResultSender(spool, lambda _key, _verdict: None)
    courier.load()
    assert courier.refusal_reason == "spool rejects writes: No space left on device"
    spooling = asyncio.create_task(courier.keep_spooling())
    courier.put(result("a"), None)
    await wait_until_async(
        lambda: courier.count_remaining == (1, 0), WAIT_TIMEOUT, "what fits to be on disk"
    )
    assert courier.refusal_reason, "but that was a small one"
    disk.room = 1 << 30
    await wait_until_async(lambda: not courier.refusal_reason, WAIT_TIMEOUT, "room for work")
    assert names(tmp_path) == ["000000000001.results", "lock", "spool_id"]
    spooling.cancel()


def test_partly_written_files_are_removed_at_the_next_start(tmp_path: Path) -> None:
    Spool(tmp_path).close()
    parts = ["000000000009.results.new", "spool_id.new", "trial.new", f"{uuid.uuid4()}.new"]
    for name in (*parts, "theirs.new"):
        (tmp_path / name).write_bytes(b"half")
    Spool(tmp_path).close()
    assert names(tmp_path) == ["lock", "spool_id", "theirs.new"]


def test_a_new_worker_whose_disk_is_full_may_be_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker must store its id, and has no results to deliver."""
    disk = Disk(monkeypatch)
    with pytest.raises(NotNow, match="No space left on device"):
        Spool(tmp_path)
    disk.room = 1000
    Spool(tmp_path).close()
