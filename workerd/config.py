"""The settings of a worker: `workerd.toml`, `WORKERD_…`, flags."""

import errno
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from schedkit.clock import utcnow
from schedkit.config.loader import ConfigProblem, Untimely
from schedkit.config.values import hidden
from schedkit.egress.policy import Egress
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS, against_each, check_plaintext, split_address
from schedkit.net.credentials import Bearer, problems
from schedkit.objects import DEFAULT_URL, open_objects
from schedkit.records import dataclass
from schedkit.text import naming

MOST_SLOTS: Final = 20_000
"""Each heartbeat lists all runs in hand. A member that doesn't read `held` receives eleven parts a
run, and reads at most `schedd.rpc.request_decoding.MOST_PARTS_OF_FRAME`.
"""


@dataclass(frozen=True, slots=True)
class WorkerListen:
    http: str = "127.0.0.1:7422"
    """Health and metrics, `host:port`; port 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class WorkerResultStore:
    """The store of whole logs and large results, the same as in the members' file."""

    url: str = DEFAULT_URL
    """`file:///folder`, `s3://bucket/prefix` and others."""
    options: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Options of the store's driver, such as `endpoint` and `region`."""
    log_mib: int = 64
    """MiB of an attempt's output that are kept; 0: the first and last 64 KiB of each stream."""
    result_mib: int = 16
    """MiB that a handler may return."""
    spool_mib: int = 1024
    """Maximum MiB of logs and large results in the spool. When ended runs that wait for the store
    hold half of it, the worker requests no new work.
    """
    timeout: timedelta = timedelta(seconds=30)
    """How long the end of a run waits for an upload while the store is unavailable."""

    def faults(self) -> Iterator[ConfigProblem]:
        if not 0 <= self.log_mib <= 65_536:
            yield ConfigProblem("log_mib", "must be from 0 to 65536")
        if not 0 <= self.result_mib <= 1024:
            yield ConfigProblem("result_mib", "must be from 0 to 1024")
        if self.spool_mib < 1:
            yield ConfigProblem("spool_mib", "must be at least 1")
        if not timedelta(0) <= self.timeout <= timedelta(minutes=10):
            yield ConfigProblem("timeout", "must be from 0s to 10m")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    endpoints: tuple[str, ...]
    """Members to begin with, `host:port`; the others are learned from them."""
    spool: Path
    """A directory of this worker's own, kept over restarts."""
    spool_mib: int = 256
    """MiB of unacknowledged results from which the worker requests no new work."""
    name: str = field(default_factory=lambda: socket.gethostname().lower())
    slots: int = 16
    cgroups: bool = True
    """Whether each attempt of a program gets its own cgroup, where the worker can create one."""
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
    """Connect without TLS to members on other hosts."""
    tls: TLS | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def faults(self) -> Iterator[ConfigProblem]:
        """Return the problems, by key, except those of the sections."""
        if not self.endpoints:
            yield ConfigProblem("endpoints", "no member is named: give at least one host:port")
        if self.tls is not None and self.tls.cert is None:
            yield ConfigProblem("tls", "give ca, cert and key together, or none of them")
        if self.spool_mib < 1:
            yield ConfigProblem("spool_mib", f"must be at least 1, not {self.spool_mib}")
        if not 1 <= self.slots <= MOST_SLOTS:
            yield ConfigProblem(
                "slots",
                f"must be from 1 to {MOST_SLOTS}, not {self.slots}; for more slots run several"
                " workers",
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
        """Return why no member can be reached there; empty if one can."""
        if why := _exposed(address, self.insecure or self.tls is not None):
            return why
        _, port = split_address(address)
        return "" if port else f"{address}: port 0 isn't a valid port"

    def unmade(self) -> Iterator[ConfigProblem]:
        """Return why the spool can't be created. Not for a worker that already runs with it."""
        try:
            _make_beside(self.spool)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or not _is_there(self.spool / _ID):
                kind = Untimely if full else ConfigProblem
                yield kind("spool", f"{self.spool} can't be created or written: {error.strerror}")

    def credentials(self) -> Sequence[ConfigProblem]:
        """Return why members can't identify this worker by its TLS files."""
        if self.tls is None or self.tls.cert is None or self.tls.key is None:
            return ()
        bearer = Bearer(
            "worker",
            self.name,
            f"{_WORKER}{self.name}",
            lambda uris: names_worker(self.name, uris),
            f"schedctl auth issue worker {self.name} [--in NAMESPACE]",
            serves=False,
        )
        return problems(self.tls, bearer, utcnow())


_ID: Final = "spool_id"
"""The file that a new worker must write into its spool."""


def _make_beside(folder: Path) -> None:
    """Create a directory beside the spool, as a new worker does, and remove it. Raises OSError. A
    full disk prevents only a new spool: an existing one is emptied by sending its results.
    """
    there = folder.absolute()
    while not _is_there(there):
        there = there.parent
    with (
        tempfile.TemporaryDirectory(prefix=".check-", dir=there) as made,
        (Path(made) / _ID).open("wb") as file,
    ):
        file.write(bytes(36))
        file.flush()
        os.fsync(file.fileno())


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _exposed(address: str, insecure: bool) -> str:
    """Return why this address can't be used, or not without TLS; empty if it can."""
    try:
        check_plaintext(address, insecure)
    except (Misconfigured, ValueError) as error:
        return str(error)
    return ""


_OURS: Final = "schedd"
_WORKER: Final = f"{_OURS}://worker/"


def names_worker(name: str, uris: Sequence[str]) -> bool:
    """Return whether a certificate with these URIs identifies the worker of this name: one URI with
    its name, or one for each namespace that it serves.
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
