"""The settings of a worker: `workerd.toml`, `WORKERD_…`, flags."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from schedkit.channel import TLS, check_plaintext, split_address
from schedkit.clock import utcnow
from schedkit.credentials import Bearer, problems, refusal
from schedkit.errors import Misconfigured
from schedkit.objects import DEFAULT_URL
from schedkit.records import dataclass

MOST_SLOTS: Final = 20_000
"""Each heartbeat lists what is in hand, eleven parts a run, and a member reads no more than
`schedd.rpc.reading.MOST_PARTS_OF_FRAME`.
"""
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Listen:
    """Where this worker listens."""

    http: str = "127.0.0.1:7422"
    """Health and metrics, `host:port`; port 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class Results:
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

    def __post_init__(self) -> None:
        if not 0 <= self.log_mib <= 65_536:
            raise ValueError("log_mib must be from 0 to 65536")
        if not 0 <= self.result_mib <= 1024:
            raise ValueError("result_mib must be from 0 to 1024")
        if self.spool_mib < 1:
            raise ValueError("spool_mib must be at least 1")
        if not timedelta(0) <= self.patience <= timedelta(minutes=10):
            raise ValueError("patience must be from 0s to 10m")


@dataclass(frozen=True, slots=True)
class Config:
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
    listen: Listen = field(default_factory=Listen)
    results: Results = field(default_factory=Results)
    drain_timeout: timedelta = timedelta(seconds=30)
    allow_loopback: bool = False
    """Whether HTTP and gRPC jobs may call this very host."""
    insecure: bool = False
    """Speak in the clear with members on other hosts."""
    tls: TLS | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("endpoints names no member")
        if self.tls is not None and self.tls.cert is None:
            raise ValueError("tls: give ca, cert and key together, or none of them")
        if self.spool_mib < 1:
            raise ValueError(f"spool_mib must be at least 1, not {self.spool_mib}")
        if not 1 <= self.slots <= MOST_SLOTS:
            raise ValueError(
                f"slots must be from 1 to {MOST_SLOTS}, not {self.slots}: each heartbeat lists what"
                " is in hand; run several workers"
            )
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} must match {_NAME.pattern}")
        split_address(self.listen.http)
        try:
            for address in self.endpoints:
                check_plaintext(address, self.insecure or self.tls is not None)
            check_plaintext(self.listen.http, self.insecure)
        except Misconfigured as error:
            raise ValueError(str(error)) from error
        for folder in self.secrets:
            if not Path(folder).is_absolute():
                raise ValueError(f"secrets: {folder} isn't an absolute path")
        if self.spool.exists() and not os.access(self.spool, os.W_OK):
            raise ValueError(f"spool {self.spool} can't be written")

    def check(self) -> None:
        """Whether members can know this worker by the files of TLS. Raises Misconfigured."""
        if self.tls is None:
            return
        told = problems(self.tls, self._bearer(), utcnow())
        if told:
            raise refusal(told)

    def _bearer(self) -> Bearer:
        return Bearer(
            "worker",
            self.name,
            f"{_WORKER}{self.name}",
            lambda uris: names_worker(self.name, uris),
            f"schedctl auth issue worker {self.name} [--in NAMESPACE]",
            serves=False,
        )


_SCHEME: Final = "schedd://"
_WORKER: Final = f"{_SCHEME}worker/"


def names_worker(name: str, uris: Sequence[str]) -> bool:
    """Whether members take who shows a certificate with these URIs for the worker of this name:
    its name once, or once for each namespace that it works for.
    """
    ours = [uri for uri in uris if uri.startswith(_SCHEME)]
    whole = f"{_WORKER}{name}"
    return ours == [whole] or (
        bool(ours)
        and all(
            uri.startswith(f"{whole}/") and _NAME.fullmatch(uri.removeprefix(f"{whole}/"))
            for uri in ours
        )
    )
