"""The configuration of `schedd`: file, environment (`SCHEDD_…`) and flags into one value."""

import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from schedd.core import early, retention
from schedd.core.late import LateLimits
from schedd.core.rights import Kind, identity_of, uri_of
from schedkit.channel import TLS, check_plaintext
from schedkit.clock import utcnow
from schedkit.config import secret
from schedkit.credentials import Bearer, problems, refusal
from schedkit.errors import Misconfigured
from schedkit.objects import DEFAULT_URL, open_objects
from schedkit.proxies import Proxies

DEFAULT_FILE: Final = Path("/etc/schedd/schedd.toml")
PREFIX: Final = "SCHEDD"
SMALLEST_TTL: Final = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where it listens: host:port each."""

    grpc: str = "127.0.0.1:7420"
    http: str = "127.0.0.1:7421"
    advertise_grpc: str = ""
    """host:port under which other hosts reach it; as `grpc` if empty."""
    advertise_http: str = ""
    grpc_tokens: str = ""
    """host:port for those who send a token and have no certificate, with TLS; empty: nowhere."""
    insecure: bool = False
    """Serve others than loopback in the clear."""
    host_names: tuple[str, ...] = ()
    """Names by which HTTP is asked in the clear, beside those of `advertise_http`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of HTTP proxies whose `X-Forwarded-For` is believed."""

    def __post_init__(self) -> None:
        self.proxies()
        for name in self.host_names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"host_names: {name!r} is no name of a host")

    def proxies(self) -> Proxies:
        """Those that are trusted."""
        try:
            return Proxies.of(self.trusted_proxies)
        except ValueError as error:
            raise ValueError(f"trusted_proxies: {error}") from None


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Etcd:
    """How etcd is reached."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "schedd/"
    user: str = ""
    password: str = secret("")
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Postgres:
    """How PostgreSQL is reached."""

    dsn: str = secret("")
    lanes: int = 1
    """Threads with a connection each for the owner's transactions. Each parts every batch anew."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What is late, beside what is due now. The same in all members: each keeps its part of it."""

    release_rate: int = 100
    """Late runs of jobs with `catch_up: all` that the whole cluster hands out in a second."""
    reserved_percent: int = 20
    """Of the workers' slots: what such runs leave to what is due now."""

    def __post_init__(self) -> None:
        if not 1 <= self.release_rate <= 1_000_000:
            raise ValueError("release_rate must be from 1 to 1000000")
        if not 0 <= self.reserved_percent <= 99:
            raise ValueError("reserved_percent must be from 0 to 99")

    def limits(self) -> LateLimits:
        """As decisions take them."""
        return LateLimits(float(self.release_rate), self.reserved_percent / 100)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How long before it is due a schedule's run is prepared; 0s: not before."""

    fire: timedelta = timedelta(seconds=2.5)
    """It is made: its row is there, PENDING."""
    arm: timedelta = timedelta(seconds=1.5)
    """It takes a worker's free slot, and starts by the worker's own timer. At most `fire`."""

    def __post_init__(self) -> None:
        self.kept()

    def kept(self) -> early.Ahead:
        """As decisions take it."""
        return early.Ahead(self.fire, self.arm)


@dataclass(frozen=True, slots=True)
class Notifications:
    """What jobs may have people told by. The same in all members: any of them may be who tells."""

    signing_key: Path | None = None
    """A file of keys (`whsec_…` a line) that webhooks are signed with; without it they aren't."""
    commands: tuple[str, ...] = ()
    """Programs, by their absolute paths, that jobs may have members run."""
    allow_loopback: bool = False
    """Whether webhooks may call this very host."""

    def __post_init__(self) -> None:
        for program in self.commands:
            if not Path(program).is_absolute():
                raise ValueError(f"commands: {program!r} isn't an absolute path")


@dataclass(frozen=True, slots=True)
class Smtp:
    """The mail server that notifications are given to."""

    host: str = ""
    """Empty: no job can have mail sent."""
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = secret("")
    mail_from: str = ""
    """Whom mail is from."""
    ca: Path | None = None
    """PEM file of who may vouch for the server; the system's roots if not given."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65_536:
            raise ValueError("port must be from 1 to 65535")
        if self.host and not _ADDRESS.fullmatch(self.mail_from):
            raise ValueError(f"mail_from {self.mail_from!r} isn't a mail address")
        if self.user and self.security == "none":
            raise ValueError("user and password go with starttls or tls alone")


_ADDRESS: Final = re.compile(r"[^\s@<>,;:]+@[^\s@<>,;:]+")


@dataclass(frozen=True, slots=True)
class Results:
    """Where workers store whole logs and large results: the same as in their files."""

    url: str = DEFAULT_URL
    """`file:///folder`, `s3://bucket/prefix` and others."""
    options: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Of the store's driver, such as `endpoint` and `region`."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what has ended is kept. The same in all members; a job's own goes before it."""

    runs: timedelta = timedelta(days=30)
    """Runs, with all that belongs to them."""
    logs: timedelta = timedelta(days=7)
    """What runs wrote."""
    dead_letters: timedelta | None = None
    """Dead letters that wait; for ever if not given."""

    def __post_init__(self) -> None:
        for length in (self.runs, self.logs, self.dead_letters):
            if length is not None and not retention.LEAST <= length <= retention.MOST:
                raise ValueError("runs, logs and dead_letters must be from 1s to 36500d")

    def kept(self) -> retention.Retention:
        """As decisions take it."""
        return retention.Retention(self.runs, self.logs, self.dead_letters)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for everything between members, workers and clients. Without them nobody is asked
    who they are.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        given = [self.ca, self.cert, self.key]
        if any(given) and not all(given):
            raise ValueError("give ca, cert and key together, or none of them")

    def files(self) -> TLS | None:
        """The files; None: plaintext."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        return TLS(self.ca, self.cert, self.key)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

    name: str = field(default_factory=socket.gethostname)
    weight: int = 100
    """Share of the shards; 0: serves calls and pages, owns none."""
    member_ttl: timedelta = timedelta(seconds=5)
    worker_ttl: timedelta = timedelta(seconds=15)
    reflection: bool = False
    """Serve gRPC reflection."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    listen: Listen = Listen()
    etcd: Etcd = Etcd()
    postgres: Postgres = Postgres()
    catch_up: CatchUp = CatchUp()
    ahead: Ahead = Ahead()
    notifications: Notifications = Notifications()
    smtp: Smtp = Smtp()
    results: Results = field(default_factory=Results)
    retention: Retention = Retention()
    tls: Tls = Tls()

    def __post_init__(self) -> None:
        for ttl in (self.member_ttl, self.worker_ttl):
            if ttl < SMALLEST_TTL:
                raise ValueError("member_ttl and worker_ttl must be at least 3s")
            if ttl % timedelta(seconds=1):
                raise ValueError("member_ttl and worker_ttl must be whole seconds")
        if not 0 <= self.weight <= 10_000:
            raise ValueError("weight must be from 0 to 10000")
        if not 1 <= self.postgres.lanes <= 64:
            raise ValueError("postgres.lanes must be from 1 to 64")
        if not self.name or "/" in self.name:
            raise ValueError("name must not be empty and has no '/'")

    def check(self, *, certificate: bool = True) -> None:
        """What a single field can't tell, all at once; and, where `certificate`, whether this
        member can be known and called by the files of TLS. Raises Misconfigured.
        """
        faults = [*self._faults()]
        tls = self.tls.files() if certificate else None
        told = problems(tls, self._bearer(), utcnow()) if tls is not None else []
        if faults or told:
            raise refusal(told, *faults)

    def _faults(self) -> Iterator[str]:
        if not self.postgres.dsn:
            yield "postgres.dsn is missing: give SCHEDD_POSTGRES__DSN or the file"
        try:
            open_objects(self.results.url, self.results.options)
        except Misconfigured as error:
            yield str(error)
        if self.tls.files() is not None:
            return
        for address in (self.listen.grpc, self.listen.http):
            try:
                check_plaintext(address, self.listen.insecure, section="listen")
            except Misconfigured as error:
                yield str(error)
        if self.listen.grpc_tokens:
            yield "listen.grpc_tokens is for TLS: give tls (ca, cert, key)"

    def _bearer(self) -> Bearer:
        def is_named(uris: Sequence[str]) -> bool:
            who = identity_of(uris)
            return who is not None and (who.kind, who.name) == (Kind.MEMBER, self.name)

        return Bearer(
            "member",
            self.name,
            uri_of(Kind.MEMBER, self.name),
            is_named,
            f"schedctl auth issue member {self.name} --host …",
            serves=True,
        )

    @property
    def call_deadline(self) -> float:
        """Of one call to etcd, in seconds: a sixth of the TTL."""
        return self.member_ttl.total_seconds() / 6
