"""A guard of a file: the whole file is replaced under a lock, after the token is on disk.

    report.csv          old or new, never in between
    report.csv.fence/   lock      held while a token is judged and the file renamed
                        token     the greatest seen
                        *.tmp     what is being written

docs/fencing.md, Files, has the rules.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from schedclient.errors import GuardBusy
from schedclient.guards import fencing
from schedkit.errors import Misconfigured

LOOK: Final = 0.02
"""Seconds between two tries to get the lock."""


class FileGuard:
    """The guard of a file. `wait`: timeout for the lock, in seconds."""

    def __init__(self, path: str | os.PathLike[str], *, wait: float = 30.0) -> None:
        self.path: Final = Path(path).resolve()  # a file with two names must have one guard
        self.folder: Final = self.path.with_name(f"{self.path.name}.fence")
        self.wait: Final = wait

    def check(self, token: int | None = None) -> None:
        """Reject all lower tokens from now on, and write nothing. `token`: by default the token of
        the environment.

        Raises:
            StaleToken: the file has a greater token.
            GuardBusy: the lock wasn't released in time.
            Misconfigured: no token, no folder, or the token on disk isn't valid.
        """
        token = fencing.given(token)
        self._prepare()
        with self._passed(token):
            pass

    def replace(self, content: bytes | str, token: int | None = None) -> None:
        """Replace the file's content, or raise as `check` does and change nothing."""
        with self.writing(token) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    @contextmanager
    def writing(self, token: int | None = None) -> Iterator[IO[bytes]]:
        """Open a new file that replaces the guarded one at the end of the block. If the token is
        stale by then, or after an exception, the guarded file isn't changed.
        """
        token = fencing.given(token)
        self._prepare()
        made = self.folder / f"{token}.{os.urandom(4).hex()}.tmp"
        try:
            with made.open("xb") as file:
                yield file
                _sync_file(file)
            with self._passed(token):
                with suppress(FileNotFoundError):
                    shutil.copymode(self.path, made)
                made.replace(self.path)
                _sync_folder(self.path.parent)
                self._sweep(token)
        finally:
            made.unlink(missing_ok=True)

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise Misconfigured(
                f"the guarded file {self.path} can't be written: its folder doesn't exist; create"
                " the folder, or give the guard another path"
            ) from None
        _sync_folder(self.path.parent)

    @contextmanager
    def _passed(self, token: int) -> Iterator[None]:
        """Hold the lock, with the token checked and on disk."""
        with self._locked():
            fencing.judge(str(self.path), token, self._last_seen())
            fresh = self.folder / "token.tmp"
            with fresh.open("wb") as file:
                file.write(b"%d\n" % token)
                _sync_file(file)
            fresh.replace(self.folder / "token")
            _sync_folder(self.folder)
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        until = time.monotonic() + self.wait
        with (self.folder / "lock").open("ab") as file:
            while not _lock(file):
                if time.monotonic() >= until:
                    raise GuardBusy(
                        f"the write to {self.path} timed out after {self.wait:g} s: another process"
                        f" holds the lock on the file {file.name}",
                        "nothing was written; if the other process hangs or is stopped, end that"
                        f" process (`fuser {file.name}` shows its process id), then try again",
                    )
                time.sleep(LOOK)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child inherits the lock

    def _last_seen(self) -> int:
        """Return the greatest token so far; 0 before the first."""
        kept = self.folder / "token"
        try:
            text = kept.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return 0
        token = fencing.read(text)
        if token is None:
            raise Misconfigured(
                f"the token file {kept} contains {text!r:.60}, which isn't a valid fencing token:"
                " write the job's last fencing token to the file (`schedctl run attempts` shows"
                " the token), or remove the file while no run is in progress"
            )
        return token

    def _sweep(self, token: int) -> None:
        """Remove the unfinished files of earlier attempts that crashed."""
        for left in self.folder.glob("*.*.tmp"):
            owner = fencing.read(left.name.partition(".")[0])
            if owner is not None and owner < token:
                left.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> bool:
    """Take the lock if it is free, against other processes and threads."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make new and renamed files of a folder durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
