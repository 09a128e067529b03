"""The configuration of `schedd`: file, environment (`SCHEDD_…`) and flags into one value."""

import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from schedd.core.auth.rights import IdentityKind, identity_of, uri_of
from schedd.core.cluster.cluster_events import LOST_FOR
from schedd.core.cluster.membership import MOST_WEIGHT
from schedd.core.runs import retention
from schedd.core.timers import pre_dispatch
from schedd.core.timers.catch_up_limits import CatchUpLimits
from schedd.etcd.access import EtcdAccess, EtcdTls, against
from schedkit.clock import utcnow
from schedkit.config.loader import ConfigProblem, secret
from schedkit.config.values import hidden
from schedkit.egress.policy import Egress
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS, against_each, check_plaintext, split_address
from schedkit.net.credentials import Bearer, problems, untimely, unusable
from schedkit.net.proxies import Proxies
from schedkit.objects import DEFAULT_URL, open_objects
from schedkit.records import dataclass
from schedkit.text import naming

# Servers that a member uses (etcd, PostgreSQL, mail, result store), and its TLS files.

_ADDRESS: Final = re.compile(r"[^\s@<>,;:]+@[^\s@<>,;:]+")


@dataclass(frozen=True, slots=True)
class Etcd:
    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "schedd/"
    user: str = ""
    password: str = secret("")
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def faults(self) -> Iterator[ConfigProblem]:
        if not self.endpoints:
            yield ConfigProblem("endpoints", "no server is given; write host:port")
        if bool(self.user) is not bool(self.password):
            yield ConfigProblem(
                "user" if self.user else "password", "user and password must be given together"
            )
        if (self.cert is None) is not (self.key is None):
            yield ConfigProblem(
                "key" if self.key else "cert", "cert and key must be given together"
            )
        encrypted = any((self.ca, self.cert, self.key))
        for why in against(self.endpoints, encrypted=encrypted):
            yield ConfigProblem("endpoints", why)

    def unusable(self, now: datetime) -> Iterator[ConfigProblem]:
        """Yield the files that can't be used, by key."""
        problems = unusable("etcd", self.ca, self.cert, self.key)
        yield from problems
        if self.cert is not None and all(problem.where != "etcd.cert" for problem in problems):
            yield from untimely("etcd.cert", self.cert, now, "get a new certificate issued")

    def access(self) -> EtcdAccess:
        """Return the settings as the adapter takes them."""
        files = (self.ca, self.cert, self.key)
        tls = EtcdTls(*files) if any(files) else None
        login = (self.user or None, self.password or None)
        return EtcdAccess(self.endpoints, tls, *login, prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class Postgres:
    dsn: str = secret("")
    lanes: int = 1
    """Threads for the owner's transactions, with one connection each. Each batch is split among
    them.
    """

    def faults(self) -> Iterator[ConfigProblem]:
        if self.dsn:
            yield from (ConfigProblem("dsn", why) for why in _against(self.dsn))
        if not 1 <= self.lanes <= 64:
            yield ConfigProblem("lanes", "must be from 1 to 64")


def _against(dsn: str) -> Iterator[str]:
    from schedd.store.connection.dsn import faults  # slow, and not always needed

    return faults(dsn)


@dataclass(frozen=True, slots=True)
class Smtp:
    """Mail server for notifications."""

    host: str = ""
    """Host name; empty: jobs can't send mail."""
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = secret("")
    mail_from: str = ""
    """Sender address."""
    ca: Path | None = None
    """PEM file of CAs for the server's certificate; the system's CAs if not given."""

    def faults(self) -> Iterator[ConfigProblem]:
        if not 0 < self.port < 65_536:
            yield ConfigProblem("port", "must be from 1 to 65535")
        if self.host and not _ADDRESS.fullmatch(self.mail_from):
            yield ConfigProblem("mail_from", f"{self.mail_from!r} isn't a mail address")
        if self.user and self.security == "none":
            yield ConfigProblem("user", 'user and password need security = "starttls" or "tls"')


@dataclass(frozen=True, slots=True)
class ResultStoreConfig:
    """Result store for whole logs and large results: the same as in the workers' files."""

    url: str = DEFAULT_URL
    """`file:///folder`, `s3://bucket/prefix` and others."""
    options: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Options of the store's driver, such as `endpoint` and `region`."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files for connections between members, workers and clients. Without them callers aren't
    authenticated.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def faults(self) -> Iterator[ConfigProblem]:
        given = [self.ca, self.cert, self.key]
        if any(given) and not all(given):
            yield ConfigProblem("", "give ca, cert and key together, or none of them")

    def files(self) -> TLS | None:
        """Return the TLS files; None: plaintext."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        return TLS(self.ca, self.cert, self.key)


# Settings that all members share: lateness, lookahead, notifications, retention.


@dataclass(frozen=True, slots=True)
class CatchUpConfig:
    """Limits on late runs. The same in all members: each applies its part of them."""

    release_rate: int = 100
    """Late runs of jobs with `catch_up: all` that the whole cluster dispatches in a second."""
    reserved_percent: int = 20
    """Percentage of workers' slots that late runs leave free for runs that are due now."""

    def faults(self) -> Iterator[ConfigProblem]:
        if not 1 <= self.release_rate <= 1_000_000:
            yield ConfigProblem("release_rate", "must be from 1 to 1000000")
        if not 0 <= self.reserved_percent <= 99:
            yield ConfigProblem("reserved_percent", "must be from 0 to 99")

    def limits(self) -> CatchUpLimits:
        """Return the limits as the scheduling code takes them."""
        return CatchUpLimits(float(self.release_rate), self.reserved_percent / 100)


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """How long before their due time scheduled runs are prepared; 0s: no preparation."""

    fire: timedelta = timedelta(seconds=2.5)
    """Lead time for creating the run: a row in state PENDING."""
    dispatch: timedelta = timedelta(seconds=1.5)
    """Lead time for pre-dispatch: the run takes a free slot, and the worker's timer starts it. At
    most `fire`.
    """

    def faults(self) -> Iterator[ConfigProblem]:
        try:
            self.to_lookahead()
        except ValueError as error:
            yield ConfigProblem("", str(error))

    def to_lookahead(self) -> pre_dispatch.Lookahead:
        """Return the lookahead as the scheduling code takes it."""
        return pre_dispatch.Lookahead(self.fire, self.dispatch)


@dataclass(frozen=True, slots=True)
class NotificationConfig:
    """Limits on jobs' notifications. The same in all members: any of them may send them."""

    signing_key: Path | None = None
    """File of keys (`whsec_…`, one a line) that sign webhooks. Without it webhooks aren't signed.
    """
    commands: tuple[str, ...] = ()
    """Absolute paths of programs that jobs may let members run."""

    def faults(self) -> Iterator[ConfigProblem]:
        for program in self.commands:
            if not Path(program).is_absolute():
                yield ConfigProblem("commands", f"{program!r} isn't an absolute path")


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Retention of ended work. The same in all members; a job's own has priority over it."""

    runs: timedelta = timedelta(days=30)
    """Ended runs, with everything that belongs to them."""
    logs: timedelta = timedelta(days=7)
    """Output of runs."""
    dead_letters: timedelta | None = None
    """Waiting dead letters; kept without limit if not given."""
    lost: timedelta = LOST_FOR
    """Lost members and workers in lists."""

    def faults(self) -> Iterator[ConfigProblem]:
        for key in ("runs", "logs", "dead_letters", "lost"):
            length = getattr(self, key)
            if length is not None and not retention.LEAST <= length <= retention.MOST:
                yield ConfigProblem(key, "the duration must be from 1s to 36500d")

    def to_retention(self) -> retention.Retention:
        """Return the retention as the scheduling code takes it."""
        return retention.Retention(self.runs, self.logs, self.dead_letters)


# Where a member listens, and under which address others reach it.

_ALL: Final = {"0.0.0.0", "::"}  # noqa: S104 - nothing is bound here
"""Hosts that mean all addresses."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Addresses at which a member listens: host:port each."""

    grpc: str = "127.0.0.1:7420"
    http: str = "127.0.0.1:7421"
    advertise_grpc: str = ""
    """host:port under which other hosts reach this member; `grpc` if empty."""
    advertise_http: str = ""
    grpc_tokens: str = ""
    """host:port with TLS for callers that send a token and have no certificate; empty: none."""
    insecure: bool = False
    """Serve callers beyond loopback without TLS."""
    host_names: tuple[str, ...] = ()
    """Host names accepted by plaintext HTTP, besides those of `advertise_http`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of HTTP proxies whose `X-Forwarded-For` is trusted."""

    def faults(self) -> Iterator[ConfigProblem]:
        for why in against_each(self.trusted_proxies, _untrusted):
            yield ConfigProblem("trusted_proxies", why)
        for why in against_each(self.host_names, _unnamed):
            yield ConfigProblem("host_names", why)
        for key in ("advertise_grpc", "advertise_http"):
            if getattr(self, key):
                yield from _unreached(key, getattr(self, key))
        yield from self._shared()

    def bound(self) -> dict[str, str]:
        """Return the addresses to listen at, by key."""
        tokens = {"grpc_tokens": self.grpc_tokens} if self.grpc_tokens else {}
        return {"grpc": self.grpc, "http": self.http, **tokens}

    def _shared(self) -> Iterator[ConfigProblem]:
        seen: list[tuple[str, str, int]] = []
        for key, address in self.bound().items():
            if [*_unread(key, address)]:
                continue
            host, port = split_address(address)
            for other, its_host, its_port in seen:
                if port and port == its_port and (host == its_host or {host, its_host} & _ALL):
                    yield ConfigProblem(key, f"{address} is already the address of listen.{other}")
            seen.append((key, host, port))

    def proxies(self) -> Proxies:
        return Proxies.from_texts(self.trusted_proxies)


def everywhere(address: str) -> str:
    """Return the host of an address if it means all addresses; otherwise an empty string."""
    try:
        host, _ = split_address(address)
        return host if ip_address(host).is_unspecified else ""
    except ValueError:
        return ""


def _untrusted(proxy: str) -> str:
    try:
        Proxies.from_texts([proxy])
    except ValueError as error:
        return str(error)
    return ""


def _unnamed(host: str) -> str:
    return "" if _HOST_NAME.fullmatch(host) else f"{host!r} isn't a valid host name"


def _unread(key: str, address: str) -> Iterator[ConfigProblem]:
    try:
        split_address(address)
    except ValueError as error:
        yield ConfigProblem(key, str(error))


def _unreached(key: str, address: str) -> Iterator[ConfigProblem]:
    """Yield why other processes can't reach this member at the address."""
    if unread := [*_unread(key, address)]:
        yield from unread
        return
    _, port = split_address(address)
    if not port or (place := everywhere(address)):
        yield ConfigProblem(
            key,
            f"{'port 0' if not port else place} can't be reached by other hosts: give an address",
        )


DEFAULT_FILE: Final = Path("/etc/schedd/schedd.toml")
PREFIX: Final = "SCHEDD"
SMALLEST_TTL: Final = timedelta(seconds=3)
LONGEST_TTL: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Config:
    name: str = field(default_factory=socket.gethostname)
    weight: int = 100
    """Share of the shards; 0: serves calls and pages, but owns no shards."""
    member_ttl: timedelta = timedelta(seconds=5)
    worker_ttl: timedelta = timedelta(seconds=15)
    reflection: bool = False
    """Serve gRPC reflection."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    listen: ListenConfig = field(default_factory=ListenConfig)
    etcd: Etcd = field(default_factory=Etcd)
    postgres: Postgres = field(default_factory=Postgres)
    catch_up: CatchUpConfig = field(default_factory=CatchUpConfig)
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    notifications: NotificationConfig = field(default_factory=NotificationConfig)
    egress: Egress = field(default_factory=Egress)
    smtp: Smtp = field(default_factory=Smtp)
    results: ResultStoreConfig = field(default_factory=ResultStoreConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)

    def faults(self) -> Iterator[ConfigProblem]:
        for key in ("member_ttl", "worker_ttl"):
            ttl = getattr(self, key)
            if not SMALLEST_TTL <= ttl <= LONGEST_TTL:
                yield ConfigProblem(key, "the duration must be from 3s to 1d")
            if ttl % timedelta(seconds=1):
                yield ConfigProblem(key, "the duration must be whole seconds")
        if not 0 <= self.weight <= MOST_WEIGHT:
            yield ConfigProblem("weight", f"must be from 0 to {MOST_WEIGHT}")
        if not naming.MEMBER.fullmatch(self.name):
            yield ConfigProblem("name", f"{self.name!r} must match {naming.MEMBER.pattern}")
        if not self.postgres.dsn:
            yield ConfigProblem(
                "postgres.dsn",
                "a value is required: set it in the file, or by SCHEDD_POSTGRES__DSN or"
                " --postgres-dsn",
            )
        try:
            open_objects(self.results.url, self.results.options)
        except Misconfigured as error:
            yield ConfigProblem("results.url", hidden(str(error)))
        yield from self._listening()

    def _listening(self) -> Iterator[ConfigProblem]:
        with_tls = any((self.tls.ca, self.tls.cert, self.tls.key))  # files are checked elsewhere
        for key, address in self.listen.bound().items():
            anywhere = self.listen.insecure or with_tls or key == "grpc_tokens"
            try:
                check_plaintext(address, anywhere, section="listen")
            except (Misconfigured, ValueError) as error:
                yield ConfigProblem(f"listen.{key}", str(error))
        if self.listen.grpc_tokens and not with_tls:
            yield ConfigProblem("listen.grpc_tokens", "needs TLS: give tls (ca, cert, key)")

    def credentials(self) -> Iterator[ConfigProblem]:
        """Yield the reasons why callers or etcd can't authenticate this member, or why it can't be
        reached.

        Files of TLS are checked too. A migration needs none of this.
        """
        if not self.listen.advertise_grpc and (place := everywhere(self.listen.grpc)):
            yield ConfigProblem(
                "listen.grpc", f"{place} can't be reached by other hosts: set listen.advertise_grpc"
            )
        yield from self.etcd.unusable(utcnow())
        if (tls := self.tls.files()) is not None:
            yield from problems(tls, self._bearer(), utcnow())

    def _bearer(self) -> Bearer:
        def is_named(uris: Sequence[str]) -> bool:
            who = identity_of(uris)
            return who is not None and (who.kind, who.name) == (IdentityKind.MEMBER, self.name)

        return Bearer(
            "member",
            self.name,
            uri_of(IdentityKind.MEMBER, self.name),
            is_named,
            f"schedctl auth issue member {self.name} --host …",
            serves=True,
        )

    @property
    def call_deadline(self) -> float:
        """Timeout of one call to etcd, in seconds: a sixth of the TTL."""
        return self.member_ttl.total_seconds() / 6
