"""A guarded file: whole at each instant, and never written by a lower token than was seen."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from schedclient import FileGuard, GuardBusy, Misconfigured, StaleToken
from schedctl.dev.servers.processes import find
from support.wait import WAIT_TIMEOUT, wait_until

DIES_AT_EACH_POINT = """
import os, signal, sys
from pathlib import Path
from schedclient import FileGuard, StaleToken

def dying(n):
    left = n
    def hook(event, args):
        nonlocal left
        if event == "open" or event.startswith(("os.", "shutil.", "fcntl.")):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for n in range(1, 1000):
    folder = Path(sys.argv[1]) / str(n)
    folder.mkdir()
    guard = FileGuard(folder / "report")
    guard.replace("one" * 5000, 1)
    if (child := os.fork()) == 0:
        dying(n)
        guard.replace("three" * 5000, 3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    content = guard.path.read_text()
    assert content in ("one" * 5000, "three" * 5000), content
    try:
        guard.check(2)
        seen = 2
    except StaleToken as stale:
        seen = stale.last_seen
    print(content[:3], seen)
    guard.replace("four", 4)
    assert guard.path.read_text() == "four"
    assert {left.name for left in guard.folder.iterdir()} == {"lock", "token"}
    if status == 0:
        break
"""

STOPS = """
import os, signal, sys
from schedclient import FileGuard

def hook(event, args):
    if event == "os.rename" and str(args[1]) == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGSTOP)
sys.addaudithook(hook)
FileGuard(sys.argv[1]).replace("by the sleeper", 1)
"""


@pytest.fixture
def guard(tmp_path: Path) -> FileGuard:
    return FileGuard(tmp_path / "report.csv")


def test_a_stale_token_leaves_the_file_alone_and_the_same_one_writes_again(
    guard: FileGuard,
) -> None:
    guard.replace(b"one", 7)
    guard.path.chmod(0o640)
    guard.replace("two", 7)
    for stale in (lambda: guard.replace("three", 6), lambda: guard.check(6)):
        with pytest.raises(StaleToken, match=r"token 6 for '.*report\.csv': .* greater token 7"):
            stale()
    assert guard.path.read_text() == "two"
    guard.check(8)
    with pytest.raises(StaleToken):
        guard.replace("four", 7)
    guard.replace("five", 8)
    assert (guard.path.read_text(), guard.path.stat().st_mode & 0o777) == ("five", 0o640)


def test_a_writer_with_a_lower_token_is_rejected_at_its_end(guard: FileGuard) -> None:
    late = guard.writing(1)
    late.__enter__().write(b"long ago")
    guard.replace("meanwhile", 2)
    with pytest.raises(StaleToken):
        late.__exit__(None, None, None)
    assert guard.path.read_text() == "meanwhile"


def test_a_failed_write_leaves_the_file_unchanged(guard: FileGuard) -> None:
    guard.replace("whole", 1)
    with suppress(ZeroDivisionError), guard.writing(2) as file:
        file.write(b"ha" * 100_000)
        file.write(b"%d" % (1 // 0))
    assert guard.path.read_text() == "whole"
    assert {left.name for left in guard.folder.iterdir()} == {"lock", "token"}


def test_the_greatest_of_concurrent_tokens_writes_last(guard: FileGuard) -> None:
    def attempt(token: int) -> int:
        with suppress(StaleToken):
            guard.replace(str(token), token)
        return int(guard.path.read_text())

    tokens = random.sample(range(1, 33), 32)
    with ThreadPoolExecutor(8) as pool:
        seen = [*pool.map(attempt, tokens)]
    assert all(after >= token for after, token in zip(seen, tokens, strict=True))
    assert guard.path.read_text() == "32"


def test_a_writer_killed_at_any_point_leaves_a_whole_file_and_a_known_token(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DIES_AT_EACH_POINT, tmp_path], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    seen = ended.stdout.split("\n")[:-1]
    assert set(seen) == {"one 2", "one 3", "thr 3"}, "killed before, between and after"
    assert len(seen) > 10


def test_the_token_is_on_disk_before_the_file_is_renamed_and_the_file_before_the_call_returns(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power keeps all that was synced, and maybe no more."""
    done: list[tuple[str, str]] = []

    def record(name: str) -> None:
        real = getattr(os, name)

        def call(what: int | Path, *more: Path) -> None:
            path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else more[0]
            done.append((name, re.sub(r"\d+\.\w+\.tmp", "new.tmp", path.name)))
            real(what, *more)

        monkeypatch.setattr(os, name, call)

    guard.replace("one", 1)
    record("fsync")
    record("replace")
    guard.replace("two", 2)
    assert done[1:] == [
        ("fsync", "new.tmp"),
        ("fsync", "token.tmp"),
        ("replace", "token"),
        ("fsync", "report.csv.fence"),
        ("replace", "report.csv"),
        ("fsync", guard.path.parent.name),
    ]


@pytest.fixture
def sleeper(guard: FileGuard) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped with the lock held, just before the file is renamed."""
    guard.replace("first", 1)
    with subprocess.Popen([sys.executable, "-c", STOPS, guard.path]) as process:
        try:
            seen = find(process.pid)
            assert seen is not None
            wait_until(seen.paused, WAIT_TIMEOUT, "the process to stop")
            yield process
        finally:
            process.kill()


def test_a_stopped_lock_holder_is_waited_for_and_named_and_its_death_frees_the_lock(
    guard: FileGuard, sleeper: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(
        GuardBusy,
        match=r"timed out after 0\.1 s: another process holds .*report\.csv\.fence/lock.*stopped",
    ):
        FileGuard(guard.path, wait=0.1).replace("second", 2)
    assert guard.path.read_text() == "first"
    sleeper.kill()
    guard.replace("second", 2)
    assert guard.path.read_text() == "second"


def test_two_names_of_a_file_have_one_guard(guard: FileGuard, tmp_path: Path) -> None:
    guard.replace("one", 2)
    (tmp_path / "alias").symlink_to(guard.path)
    with pytest.raises(StaleToken):
        FileGuard(tmp_path / "alias").replace("two", 1)


@pytest.mark.parametrize("kept", ["", "two", "-1", "0x7", "²"])
def test_an_invalid_token_on_disk_refuses_every_caller(guard: FileGuard, kept: str) -> None:
    guard.replace("one", 1)
    (guard.folder / "token").write_text(kept)
    with pytest.raises(
        Misconfigured, match="which isn't a valid fencing token: write the job's last fencing token"
    ):
        guard.replace("two", 2)
    assert guard.path.read_text() == "one"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        Misconfigured, match=r"nowhere.* can't be written: its folder doesn't exist"
    ):
        FileGuard(tmp_path / "nowhere" / "report").replace("", 1)
