"""The configuration of `schedd`: file, environment (`SCHEDD_…`) and flags into one value."""

import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from schedd.core import early, retention
from schedd.core.late import LateLimits
from schedd.core.rights import Kind, identity_of, uri_of
from schedd.etcd.access import Access
from schedd.etcd.access import Tls as EtcdTls
from schedkit.channel import TLS, check_plaintext, split_address
from schedkit.clock import utcnow
from schedkit.config import Problem, hidden, secret
from schedkit.credentials import Bearer, problems, untimely, unusable
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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        try:
            self.proxies()
        except ValueError as error:
            yield Problem("trusted_proxies", str(error))
        for name in self.host_names:
            if not _HOST_NAME.fullmatch(name):
                yield Problem("host_names", f"{name!r} is no name of a host")
        for key in ("advertise_grpc", "advertise_http"):
            if getattr(self, key):
                yield from _unreached(key, getattr(self, key))
        yield from self._shared()

    def bound(self) -> dict[str, str]:
        """The addresses that are listened at, by key."""
        tokens = {"grpc_tokens": self.grpc_tokens} if self.grpc_tokens else {}
        return {"grpc": self.grpc, "http": self.http, **tokens}

    def _shared(self) -> Iterator[Problem]:
        """Two that would have one port of one host."""
        seen: list[tuple[str, str, int]] = []
        for key, address in self.bound().items():
            if [*_unread(key, address)]:
                continue
            host, port = split_address(address)
            for other, its_host, its_port in seen:
                if port and port == its_port and (host == its_host or {host, its_host} & _ALL):
                    yield Problem(key, f"{address} is the port of listen.{other}, too")
            seen.append((key, host, port))

    def proxies(self) -> Proxies:
        """Those that are trusted."""
        return Proxies.of(self.trusted_proxies)


def _unread(key: str, address: str) -> Iterator[Problem]:
    try:
        split_address(address)
    except ValueError as error:
        yield Problem(key, str(error))


def _unreached(key: str, address: str) -> Iterator[Problem]:
    """Why nobody gets to this member there."""
    if unread := [*_unread(key, address)]:
        yield from unread
        return
    _, port = split_address(address)
    if not port or (everywhere := _everywhere(address)):
        yield Problem(key, f"nobody reaches {'port 0' if not port else everywhere}")


def _everywhere(address: str) -> str:
    """The host that is no place, but all addresses of one; empty: it isn't such."""
    try:
        host, _ = split_address(address)
        return host if ip_address(host).is_unspecified else ""
    except ValueError:
        return ""


_ALL: Final = {"0.0.0.0", "::"}  # noqa: S104 - nothing is bound here
"""Hosts that stand for all addresses."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""Of a member: a host's, or one as workers have."""
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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        if not self.endpoints:
            yield Problem("endpoints", "no server is given; write host:port")
        if bool(self.user) is not bool(self.password):
            yield Problem("user" if self.user else "password", "user and password come together")
        if (self.cert is None) is not (self.key is None):
            yield Problem("key" if self.key else "cert", "cert and key come together")
        tls = EtcdTls() if any((self.ca, self.cert, self.key)) else None
        for endpoint in self.endpoints:
            try:
                Access((endpoint,), tls=tls)
            except Misconfigured as error:
                yield Problem("endpoints", str(error).removeprefix("etcd: "))

    def unusable(self, now: datetime) -> Iterator[Problem]:
        """Which of its files are none to connect by, by key."""
        told = unusable("etcd", self.ca, self.cert, self.key)
        yield from told
        if self.cert is not None and all(problem.where != "etcd.cert" for problem in told):
            yield from untimely("etcd.cert", self.cert, now, "have a fresh one issued")

    def access(self) -> Access:
        """As the adapter takes it."""
        files = (self.ca, self.cert, self.key)
        tls = EtcdTls(*files) if any(files) else None
        return Access(self.endpoints, tls, self.user or None, self.password or None)


@dataclass(frozen=True, slots=True)
class Postgres:
    """How PostgreSQL is reached."""

    dsn: str = secret("")
    lanes: int = 1
    """Threads with a connection each for the owner's transactions. Each parts every batch anew."""

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        if self.dsn:
            yield from (Problem("dsn", why) for why in _against(self.dsn))
        if not 1 <= self.lanes <= 64:
            yield Problem("lanes", "must be from 1 to 64")


def _against(dsn: str) -> Iterator[str]:
    """Why it is none to connect by; nobody is asked."""
    from schedd.store import dsn as options  # heavy: not for who reads settings alone
    from schedd.store.database import url_of

    try:
        url = url_of(dsn)
    except Misconfigured:
        yield "must be a URL such as postgresql://USER@HOST/DATABASE"
    else:
        yield from options.faults(url)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What is late, beside what is due now. The same in all members: each keeps its part of it."""

    release_rate: int = 100
    """Late runs of jobs with `catch_up: all` that the whole cluster hands out in a second."""
    reserved_percent: int = 20
    """Of the workers' slots: what such runs leave to what is due now."""

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        if not 1 <= self.release_rate <= 1_000_000:
            yield Problem("release_rate", "must be from 1 to 1000000")
        if not 0 <= self.reserved_percent <= 99:
            yield Problem("reserved_percent", "must be from 0 to 99")

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

    def faults(self) -> Iterator[Problem]:
        """What is wrong."""
        try:
            self.kept()
        except ValueError as error:
            yield Problem("", str(error))

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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        for program in self.commands:
            if not Path(program).is_absolute():
                yield Problem("commands", f"{program!r} isn't an absolute path")


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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        if not 0 < self.port < 65_536:
            yield Problem("port", "must be from 1 to 65535")
        if self.host and not _ADDRESS.fullmatch(self.mail_from):
            yield Problem("mail_from", f"{self.mail_from!r} isn't a mail address")
        if self.user and self.security == "none":
            yield Problem("user", "user and password go with starttls or tls alone")


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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key."""
        for key in ("runs", "logs", "dead_letters"):
            length = getattr(self, key)
            if length is not None and not retention.LEAST <= length <= retention.MOST:
                yield Problem(key, "must be from 1s to 36500d")

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

    def faults(self) -> Iterator[Problem]:
        """What is wrong with which are given."""
        given = [self.ca, self.cert, self.key]
        if any(given) and not all(given):
            yield Problem("", "give ca, cert and key together, or none of them")

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

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key, but for what the sections say of themselves."""
        for key in ("member_ttl", "worker_ttl"):
            ttl = getattr(self, key)
            if ttl < SMALLEST_TTL:
                yield Problem(key, f"must be at least {SMALLEST_TTL.seconds}s")
            if ttl % timedelta(seconds=1):
                yield Problem(key, "must be whole seconds")
        if not 0 <= self.weight <= 10_000:
            yield Problem("weight", "must be from 0 to 10000")
        if not _NAME.fullmatch(self.name):
            yield Problem("name", f"{self.name!r} must match {_NAME.pattern}")
        if not self.postgres.dsn:
            yield Problem("postgres.dsn", "is missing: give SCHEDD_POSTGRES__DSN or the file")
        try:
            open_objects(self.results.url, self.results.options)
        except Misconfigured as error:
            yield Problem("results.url", hidden(str(error)))
        yield from self._listening()

    def _listening(self) -> Iterator[Problem]:
        with_tls = self._begun_tls()
        for key, address in self.listen.bound().items():
            anywhere = self.listen.insecure or with_tls or key == "grpc_tokens"
            try:
                check_plaintext(address, anywhere, section="listen")
            except (Misconfigured, ValueError) as error:
                yield Problem(f"listen.{key}", str(error))
        if self.listen.grpc_tokens and not with_tls:
            yield Problem("listen.grpc_tokens", "is for TLS: give tls (ca, cert, key)")

    def _begun_tls(self) -> bool:
        """Whether it is wanted; that it lacks a file is told by itself."""
        return any((self.tls.ca, self.tls.cert, self.tls.key))

    def credentials(self) -> Iterator[Problem]:
        """Why this member can't be known, by etcd or by who calls it, by the files of TLS; or how
        it is reached. Nothing of it is for a migration.
        """
        if not self.listen.advertise_grpc and (everywhere := _everywhere(self.listen.grpc)):
            yield Problem("listen.grpc", f"set advertise_grpc: nobody reaches {everywhere}")
        yield from self.etcd.unusable(utcnow())
        if (tls := self.tls.files()) is not None:
            yield from problems(tls, self._bearer(), utcnow())

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
