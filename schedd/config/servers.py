"""Servers that a member uses (etcd, PostgreSQL, mail, result store) and its TLS files."""

import re
from collections.abc import Iterator
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from schedd.etcd.access import EtcdAccess, EtcdTls, against
from schedkit.config.loader import ConfigProblem, secret
from schedkit.net.channel import TLS
from schedkit.net.credentials import untimely, unusable
from schedkit.objects import DEFAULT_URL
from schedkit.records import dataclass

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
