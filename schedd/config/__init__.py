"""The configuration of `schedd`: file, environment (`SCHEDD_…`) and flags into one value."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from schedd.config.listening import Listen, everywhere
from schedd.config.policies import Ahead, CatchUp, Notifications, Retention
from schedd.config.servers import Etcd, Postgres, Results, Smtp, Tls
from schedd.core.cluster.membership import MOST_WEIGHT
from schedd.core.jobs.rights import Kind, identity_of, uri_of
from schedkit.clock import utcnow
from schedkit.config import Problem, hidden
from schedkit.egress.policy import Egress
from schedkit.errors import Misconfigured
from schedkit.net.channel import check_plaintext
from schedkit.net.credentials import Bearer, problems
from schedkit.objects import open_objects
from schedkit.text import naming

DEFAULT_FILE: Final = Path("/etc/schedd/schedd.toml")
PREFIX: Final = "SCHEDD"
SMALLEST_TTL: Final = timedelta(seconds=3)
LONGEST_TTL: Final = timedelta(days=1)


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
    listen: Listen = field(default_factory=Listen)
    etcd: Etcd = field(default_factory=Etcd)
    postgres: Postgres = field(default_factory=Postgres)
    catch_up: CatchUp = field(default_factory=CatchUp)
    ahead: Ahead = field(default_factory=Ahead)
    notifications: Notifications = field(default_factory=Notifications)
    egress: Egress = field(default_factory=Egress)
    smtp: Smtp = field(default_factory=Smtp)
    results: Results = field(default_factory=Results)
    retention: Retention = field(default_factory=Retention)
    tls: Tls = field(default_factory=Tls)

    def faults(self) -> Iterator[Problem]:
        """What is wrong, by key, but for what the sections say of themselves."""
        for key in ("member_ttl", "worker_ttl"):
            ttl = getattr(self, key)
            if not SMALLEST_TTL <= ttl <= LONGEST_TTL:
                yield Problem(key, "must be from 3s to 1d")
            if ttl % timedelta(seconds=1):
                yield Problem(key, "must be whole seconds")
        if not 0 <= self.weight <= MOST_WEIGHT:
            yield Problem("weight", f"must be from 0 to {MOST_WEIGHT}")
        if not naming.MEMBER.fullmatch(self.name):
            yield Problem("name", f"{self.name!r} must match {naming.MEMBER.pattern}")
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
        if not self.listen.advertise_grpc and (place := everywhere(self.listen.grpc)):
            yield Problem("listen.grpc", f"set advertise_grpc: nobody reaches {place}")
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
