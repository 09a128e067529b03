"""A guard of a file: it is replaced as a whole, under a lock, after the token is on disk.

    FileGuard("/srv/report.csv").replace(table, ctx.fencing_token)

    report.csv          old or new, never in between
    report.csv.fence/   lock      held while a token is judged and the file renamed
                        token     the greatest seen
                        *.tmp     what is being written

Invariants
- The token is durable before the file is renamed: whenever this process or its machine dies, the
  token on disk is no lower than that of whoever wrote the file.
- What takes long, the writing itself, is done before the lock is taken.
- The kernel frees the lock when its holder dies, and not before: a holder that was stopped is
  waited for, never overtaken. So it holds on one machine's file systems, and no others.
"""

from __future__ import annotations

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
    """The guard of one file. `wait`: seconds until a lock that somebody holds is an error."""

    def __init__(self, path: str | os.PathLike[str], *, wait: float = 30.0) -> None:
        self.path: Final = Path(path).resolve()  # a file with two names must have one guard
        self.folder: Final = self.path.with_name(f"{self.path.name}.fence")
        self.wait: Final = wait

    def check(self, token: int | None = None) -> None:
        """Refuse all lower tokens from now on, and write nothing. `token`: by default that of the
        environment.

        Raises:
            StaleToken: a greater one was seen.
            GuardBusy: the lock wasn't to be had in time.
            Misconfigured: no token, no folder, or what should be a token on disk is none.
        """
        token = fencing.given(token)
        self._prepare()
        with self._passed(token):
            pass

    def replace(self, content: bytes | str, token: int | None = None) -> None:
        """Put this in the file's place, or raise as `check` does and leave it as it was."""
        with self.writing(token) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    @contextmanager
    def writing(self, token: int | None = None) -> Iterator[IO[bytes]]:
        """A file to write into, which takes the other's place at the block's end, if the token is
        still the greatest then; otherwise, and after an exception, all is as it was.
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
            raise Misconfigured(f"no folder {self.path.parent} to keep a file in") from None
        _sync_folder(self.path.parent)

    @contextmanager
    def _passed(self, token: int) -> Iterator[None]:
        """Under the lock, with the token judged, and on disk."""
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
                        f"{file.name} was held for {self.wait:g} s",
                        "its holder hangs or is stopped: end it (`fuser` tells who it is) and try"
                        " again; nothing was written",
                    )
                time.sleep(LOOK)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too

    def _last_seen(self) -> int:
        """The greatest token so far; 0 before the first."""
        kept = self.folder / "token"
        try:
            text = kept.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return 0
        token = fencing.read(text)
        if token is None:
            raise Misconfigured(
                f"{kept} holds {text!r:.60}, which is no token: put the last one there (`schedctl"
                " run attempts` shows them), or remove it while nothing of the job runs"
            )
        return token

    def _sweep(self, token: int) -> None:
        """Remove what attempts have left that died over their writing: those before this one."""
        for left in self.folder.glob("*.*.tmp"):
            owner = fencing.read(left.name.partition(".")[0])
            if owner is not None and owner < token:
                left.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> bool:
    """Take the lock if it is free; no other process, and no other thread, has it then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Have what was made or renamed in it outlive a crash of the machine."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
