"""A worker's durable queue of results on disk, until a member has stored them.

    DIRECTORY/
      lock            held (flock) by the worker process that owns the directory; names this process
      spool_id        created once; identifies the worker over its incarnations
      cluster         id of the cluster that the worker belongs to
      <n>.results     a WorkerFrame with either results or batches of successes
      *.journal       running processes, for the keeper
      scratch/        files of attempts that run
      kept/           logs and large results on their way to the result store

Invariants
- A batch is on disk (file and directory synced) before any of its results is sent.
- A batch appears whole or not at all: it is written beside, then renamed.
- A batch is removed only when each of its results was acknowledged. A result may be sent twice;
  members recognize it by its token and digest.
- Two processes never share a directory.
- A result is never rejected because of the limit: the request for new work checks `size`.
- Partly written files are removed when the write fails, or at the next start.

All functions of the spool block; `result_sender` calls them in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from schedkit import failpoints
from schedkit.errors import Misconfigured, NotNow
from schedproto.v1 import worker_service_pb2 as pb
from workerd.batches import result_violations

log = logging.getLogger(__name__)

SUFFIX = ".results"
_BATCH = re.compile(r"[0-9]{1,18}" + re.escape(SUFFIX), re.ASCII)
_PARTS = re.compile(
    r"([0-9]{1,18}\.results|spool_id|cluster|trial|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\.new"
)
"""Names of unfinished files of this directory's workers."""
_MOST_ID = 100
"""Characters of a cluster's id."""
_TRIAL = 1 << 18
"""Bytes; the largest result has little more than half of that."""

BEFORE_SYNC = failpoints.blocking("worker.before_fsync", OSError)
AFTER_SYNC = failpoints.blocking("worker.after_fsync", OSError)


class Spool:
    """The directory, locked for this process from construction to `close`."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory. Raises Misconfigured: another process has locked it, or it can't be
        written; NotNow: it is new, and its disk is full.
        """
        self.directory = directory
        try:
            directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._lock = _locked(directory)
            try:
                self._remove_parts()
                self.id = self._identity()
            except (OSError, Misconfigured):
                os.close(self._lock)
                raise
        except OSError as error:
            refused = NotNow if error.errno in (errno.ENOSPC, errno.EDQUOT) else Misconfigured
            raise refused(
                f"the spool directory {directory} can't be used: {error}; check its disk and"
                " its permissions"
            ) from error
        self._batches: dict[Path, int] = {}
        """Number of unacknowledged results of each file."""
        self._empty: list[Path] = []
        """Files to remove."""
        self._sizes: dict[Path, int] = {}
        self.size = 0
        """Bytes of all files."""
        self._numbers = itertools.count(1)

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    @property
    def upload_directory(self) -> Path:
        return self.directory / "kept"

    def load(self) -> list[tuple[Path, pb.WorkerFrame]]:
        """Return the batches of earlier processes, oldest first."""
        batches = []
        for path in self._found():
            data = path.read_bytes()
            try:
                frame = pb.WorkerFrame.FromString(data)
            except DecodeError:
                frame = pb.WorkerFrame()
            if not _count(frame) or any(map(result_violations, frame.result_batches)):
                path.rename(path.with_suffix(".damaged"))
                log.warning("spool file %s is damaged: set aside", path)
                continue
            self._account(path, _count(frame), len(data))
            batches.append((path, frame))
        if batches:
            self._numbers = itertools.count(_number(batches[-1][0]) + 1)
        return batches

    def _found(self) -> list[Path]:
        found = []
        for path in self.directory.glob(f"*{SUFFIX}"):
            if _BATCH.fullmatch(path.name) and path.is_file():
                found.append(path)
            else:
                log.warning("unknown file in the spool ignored: %s", path)
        return sorted(found, key=_number)

    def write(self, frame: pb.WorkerFrame, results: Mapping[Path, int] | None = None) -> Path:
        """Store a batch durably. Remove acknowledged `results` before: that makes room. Raises
        OSError: the disk is full, or failed. Write it again: a second copy does no harm.
        """
        with suppress(OSError):  # `unremoved`
            self.acknowledged(results or {})
        path = self.directory / f"{next(self._numbers):012d}{SUFFIX}"
        data = frame.SerializeToString()
        BEFORE_SYNC()
        write_file(path, data)
        AFTER_SYNC()
        self._account(path, _count(frame), len(data))
        return path

    @property
    def unremoved(self) -> bool:
        """Whether files wait for `acknowledged`, because they couldn't be removed."""
        return bool(self._empty)

    def try_out(self) -> None:
        """Write a file as large as a large result, and remove it. Raises OSError: the disk rejects
        writes.
        """
        trial = self.directory / "trial.new"
        _write_part(trial, os.urandom(_TRIAL))
        trial.unlink()

    def acknowledged(self, results: Mapping[Path, int]) -> None:
        """Count acknowledged results by file; remove files without any left. Raises OSError: a file
        can't be removed. All were counted; the next call retries.
        """
        for path, count in results.items():
            self._batches[path] -= count
            if not self._batches[path]:
                del self._batches[path]
                self._empty.append(path)
        while self._empty:
            self._empty[-1].unlink(missing_ok=True)
            self.size -= self._sizes.pop(self._empty.pop())

    def free(self) -> int:
        """Return the free bytes of its disk; 0 if they are unknown."""
        try:
            return shutil.disk_usage(self.directory).free
        except OSError:
            return 0

    def close(self) -> None:
        os.close(self._lock)

    def _account(self, path: Path, results: int, size: int) -> None:
        self._batches[path] = results
        self._sizes[path] = size
        self.size += size

    def _remove_parts(self) -> None:
        for path in self.directory.glob("*.new"):
            if _PARTS.fullmatch(path.name) and path.is_file():
                path.unlink()

    def _identity(self) -> str:
        path = self.directory / "spool_id"
        if not path.exists():
            write_file(path, str(uuid.uuid4()).encode())
        text = path.read_text("ascii", errors="replace").strip()
        try:
            return str(uuid.UUID(text))
        except ValueError:
            raise Misconfigured(
                f"the file {path} must contain the worker's id, but contains {text[:60]!r}:"
                " restore the earlier id, or remove the file to register as a new worker"
            ) from None


def _locked(directory: Path) -> int:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 300, 0).decode("utf-8", "replace").strip()
        os.close(lock)
        raise Misconfigured(
            f"the spool directory {directory} is in use by another worker"
            + (f", {holder}: end that process" if holder else ": end its process")
            + " (with SIGKILL if it is stopped or hangs), or give each worker its own directory"
        ) from None
    with suppress(OSError):  # a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
    return lock


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, synced with its directory. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    _write_part(fresh, data)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_part(path: Path, data: bytes) -> None:
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _count(frame: pb.WorkerFrame) -> int:
    return len(frame.results) + sum(len(each.fencing_tokens) for each in frame.result_batches)


def _number(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))


class HomeCluster:
    """The file that names the worker's cluster, written at the first welcome. Spooled results
    belong to runs of that cluster. A member of another cluster would answer that the runs are
    unknown, and the results would be lost.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "cluster"
        self._known = ""
        self._writing = asyncio.Lock()

    async def refusal(self, member: str, cluster_id: str) -> str:
        """Return why a member of this cluster is refused; empty if it isn't. The first cluster is
        remembered. Members of older versions name no cluster.
        """
        if not cluster_id:
            return ""
        async with self._writing:
            if not self._known:
                self._known = await asyncio.to_thread(self._read_or_write, cluster_id)
        if self._known in ("", cluster_id):
            return ""
        return (
            f"member {member} belongs to cluster {cluster_id}, but this worker belongs to cluster"
            f" {self._known}, by the file {self._path}. Set `endpoints` to members of the worker's"
            " cluster. To move the worker to the other cluster, stop it, and remove its spool"
            " directory when the spool contains no results"
        )

    def _read_or_write(self, cluster_id: str) -> str:
        try:
            known = self._path.read_text("ascii", errors="replace").strip()[:_MOST_ID]
        except FileNotFoundError:
            known = ""
        if not known:
            try:
                write_file(self._path, cluster_id.encode())
            except OSError as error:  # such as a full disk: the next welcome writes it
                log.warning(
                    "cluster id not written to the spool, the next connection retries",
                    extra={"path": self._path, "error": error},
                )
                return ""
        return known or cluster_id
