"""The settings of a worker: `workerd.toml`, `WORKERD_…`, flags."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from schedkit.clock import utcnow
from schedkit.config import ConfigProblem, Untimely, hidden
from schedkit.egress.policy import Egress
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS, against_each, check_plaintext, split_address
from schedkit.net.credentials import Bearer, problems
from schedkit.objects import DEFAULT_URL, open_objects
from schedkit.records import dataclass
from schedkit.text import naming

MOST_SLOTS: Final = 20_000
"""Each heartbeat tells all that is in hand. A member that doesn't read `held` is told by eleven
parts a run, and reads no more than `schedd.rpc.request_decoding.MOST_PARTS_OF_FRAME`.
"""


@dataclass(frozen=True, slots=True)
class WorkerListen:
    """Where this worker listens."""

    http: str = "127.0.0.1:7422"
    """Health and metrics, `host:port`; port 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class WorkerResultStore:
    """Where whole logs and large results go: the same store as in the members' file."""

    url: str = DEFAULT_URL
    """`file:///folder`, `s3://bucket/prefix` and others."""
    options: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Of the store's driver, such as `endpoint` and `region`."""
    log_mib: int = 64
    """MiB of an attempt's output that are kept; 0: the first and last 64 KiB of each stream."""
    result_mib: int = 16
    """MiB that a handler may return."""
    spool_mib: int = 1024
    """MiB of logs and large results that may be in the spool. From half of it, in what has ended
    and waits for the store, no new work is asked for.
    """
    patience: timedelta = timedelta(seconds=30)
    """How long the end of a run is held back where the store is away."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        if not 0 <= self.log_mib <= 65_536:
            yield ConfigProblem("log_mib", "must be from 0 to 65536")
        if not 0 <= self.result_mib <= 1024:
            yield ConfigProblem("result_mib", "must be from 0 to 1024")
        if self.spool_mib < 1:
            yield ConfigProblem("spool_mib", "must be at least 1")
        if not timedelta(0) <= self.patience <= timedelta(minutes=10):
            yield ConfigProblem("patience", "must be from 0s to 10m")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything that can be set."""

    endpoints: tuple[str, ...]
    """Members to begin with, `host:port`; the others are learned from them."""
    spool: Path
    """A directory of this worker's own, kept over restarts."""
    spool_mib: int = 256
    """MiB of results that nobody takes, past which no new work is asked for."""
    name: str = field(default_factory=lambda: socket.gethostname().lower())
    slots: int = 16
    cgroups: bool = True
    """Whether each attempt of a program gets a cgroup of its own, where one can be made."""
    secrets: tuple[str, ...] = ()
    """Directories below which jobs may name files: variables (`env_from`), keys (`signing_key`)."""
    handlers: tuple[str, ...] = ()
    """Modules that register Python handlers."""
    labels: dict[str, str] = field(default_factory=dict)
    listen: WorkerListen = field(default_factory=WorkerListen)
    results: WorkerResultStore = field(default_factory=WorkerResultStore)
    drain_timeout: timedelta = timedelta(seconds=30)
    egress: Egress = field(default_factory=Egress)
    insecure: bool = False
    """Speak in the clear with members on other hosts."""
    tls: TLS | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key, but for what the sections say of themselves."""
        if not self.endpoints:
            yield ConfigProblem("endpoints", "no member is named; write host:port")
        if self.tls is not None and self.tls.cert is None:
            yield ConfigProblem("tls", "give ca, cert and key together, or none of them")
        if self.spool_mib < 1:
            yield ConfigProblem("spool_mib", f"must be at least 1, not {self.spool_mib}")
        if not 1 <= self.slots <= MOST_SLOTS:
            yield ConfigProblem(
                "slots",
                f"must be from 1 to {MOST_SLOTS}, not {self.slots}: each heartbeat lists what"
                " is in hand; run several workers",
            )
        if not naming.WORKER.fullmatch(self.name):
            yield ConfigProblem("name", f"{self.name!r} must match {naming.WORKER.pattern}")
        for why in against_each(self.endpoints, self._unreached):
            yield ConfigProblem("endpoints", why)
        for key in self.labels:
            if not naming.LABEL.fullmatch(key):
                yield ConfigProblem(
                    "labels", f"{key!r} isn't a label's key: {naming.LABEL_IN_WORDS}"
                )
        if why := _exposed(self.listen.http, self.insecure):
            yield ConfigProblem("listen.http", why)
        for folder in self.secrets:
            if not Path(folder).is_absolute():
                yield ConfigProblem("secrets", f"{folder} isn't an absolute path")
        try:
            open_objects(self.results.url, self.results.options)
        except Misconfigured as error:
            yield ConfigProblem("results.url", hidden(str(error)))

    def _unreached(self, address: str) -> str:
        """Why no member is reached there; empty: one may be."""
        if why := _exposed(address, self.insecure or self.tls is not None):
            return why
        _, port = split_address(address)
        return "" if port else f"nobody is reached at port 0: {address}"

    def unmade(self) -> Iterator[ConfigProblem]:
        """Why it can't have its spool: seen by making one. Not for who runs with it already."""
        try:
            _make_beside(self.spool)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or _is_new(self.spool):
                kind = Untimely if full else ConfigProblem
                yield kind("spool", f"{self.spool} can't be made or written: {error.strerror}")

    def credentials(self) -> Sequence[ConfigProblem]:
        """Why members can't know this worker by the files of TLS."""
        if self.tls is None or self.tls.cert is None or self.tls.key is None:
            return ()
        return problems(self.tls, self._bearer(), utcnow())

    def _bearer(self) -> Bearer:
        return Bearer(
            "worker",
            self.name,
            f"{_WORKER}{self.name}",
            lambda uris: names_worker(self.name, uris),
            f"schedctl auth issue worker {self.name} [--in NAMESPACE]",
            serves=False,
        )


_ID: Final = "spool_id"
"""What a new worker can't begin without, in its spool."""


def _make_beside(folder: Path) -> None:
    """Make another one where it would be, as a new worker makes its own, and take it away. Raises
    OSError; that the disk is full hinders a new one alone: what a spool holds is to be told, and
    makes room.
    """
    there = folder.absolute()
    while not _is_there(there):
        there = there.parent
    made = Path(tempfile.mkdtemp(prefix=".check-", dir=there))
    try:
        with (made / _ID).open("wb") as file:
            file.write(bytes(36))
            file.flush()
            os.fsync(file.fileno())
    finally:
        shutil.rmtree(made)


def _is_new(spool: Path) -> bool:
    return not _is_there(spool / _ID)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _exposed(address: str, insecure: bool) -> str:
    """Why it can't be spoken with in the clear there, or at all; empty: it can."""
    try:
        check_plaintext(address, insecure)
    except (Misconfigured, ValueError) as error:
        return str(error)
    return ""


_OURS: Final = "schedd"
_WORKER: Final = f"{_OURS}://worker/"


def names_worker(name: str, uris: Sequence[str]) -> bool:
    """Whether members take who shows a certificate with these URIs for the worker of this name:
    its name once, or once for each namespace that it works for.
    """
    ours = [uri for uri in uris if uri.partition(":")[0].casefold() == _OURS]
    whole = f"{_WORKER}{name}"
    return ours == [whole] or (
        bool(ours)
        and all(
            uri.startswith(f"{whole}/") and naming.WORKER.fullmatch(uri.removeprefix(f"{whole}/"))
            for uri in ours
        )
    )
