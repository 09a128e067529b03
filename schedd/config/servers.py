"""What a member talks to: etcd, PostgreSQL, a mail server, the store of results; and by which files
it is known to members, workers and clients.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from schedd.etcd.access import EtcdAccess, EtcdTls, against
from schedkit.config import ConfigProblem, secret
from schedkit.net.channel import TLS
from schedkit.net.credentials import untimely, unusable
from schedkit.objects import DEFAULT_URL

_ADDRESS: Final = re.compile(r"[^\s@<>,;:]+@[^\s@<>,;:]+")


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

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        if not self.endpoints:
            yield ConfigProblem("endpoints", "no server is given; write host:port")
        if bool(self.user) is not bool(self.password):
            yield ConfigProblem(
                "user" if self.user else "password", "user and password come together"
            )
        if (self.cert is None) is not (self.key is None):
            yield ConfigProblem("key" if self.key else "cert", "cert and key come together")
        encrypted = any((self.ca, self.cert, self.key))
        for why in against(self.endpoints, encrypted=encrypted):
            yield ConfigProblem("endpoints", why)

    def unusable(self, now: datetime) -> Iterator[ConfigProblem]:
        """Yield the files that can't be used, by key."""
        problems = unusable("etcd", self.ca, self.cert, self.key)
        yield from problems
        if self.cert is not None and all(problem.where != "etcd.cert" for problem in problems):
            yield from untimely("etcd.cert", self.cert, now, "have a fresh one issued")

    def access(self) -> EtcdAccess:
        """As the adapter takes it."""
        files = (self.ca, self.cert, self.key)
        tls = EtcdTls(*files) if any(files) else None
        return EtcdAccess(self.endpoints, tls, self.user or None, self.password or None)


@dataclass(frozen=True, slots=True)
class Postgres:
    """How PostgreSQL is reached."""

    dsn: str = secret("")
    lanes: int = 1
    """Threads with a connection each for the owner's transactions. Each splits each batch."""

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        if self.dsn:
            yield from (ConfigProblem("dsn", why) for why in _against(self.dsn))
        if not 1 <= self.lanes <= 64:
            yield ConfigProblem("lanes", "must be from 1 to 64")


def _against(dsn: str) -> Iterator[str]:
    """Yield why this DSN isn't valid, without a connection."""
    from schedd.store.connection.dsn import faults  # heavy: not for who reads settings alone

    return faults(dsn)


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

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong, by key."""
        if not 0 < self.port < 65_536:
            yield ConfigProblem("port", "must be from 1 to 65535")
        if self.host and not _ADDRESS.fullmatch(self.mail_from):
            yield ConfigProblem("mail_from", f"{self.mail_from!r} isn't a mail address")
        if self.user and self.security == "none":
            yield ConfigProblem("user", "user and password go with starttls or tls alone")


@dataclass(frozen=True, slots=True)
class ResultStoreConfig:
    """Where workers store whole logs and large results: the same as in their files."""

    url: str = DEFAULT_URL
    """`file:///folder`, `s3://bucket/prefix` and others."""
    options: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Of the store's driver, such as `endpoint` and `region`."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files for everything between members, workers and clients. Without them callers aren't
    authenticated.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def faults(self) -> Iterator[ConfigProblem]:
        """What is wrong with which are given."""
        given = [self.ca, self.cert, self.key]
        if any(given) and not all(given):
            yield ConfigProblem("", "give ca, cert and key together, or none of them")

    def files(self) -> TLS | None:
        """The files; None: plaintext."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        return TLS(self.ca, self.cert, self.key)
