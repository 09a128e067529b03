"""What a cluster's folder remembers: `state.json` for us, `cluster.json` for everyone else.

`state.json` holds the whole truth: each part with its ports and, while it runs, the process with
its birth; and what `up` was asked for, so that `up` without arguments completes the same cluster.
`cluster.json` is written from it in the form that INTERFACE promises; nobody here reads it. A part
that was stopped by us has `"pid": null` there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from schedctl.dev.servers import etcd, postgres
from schedctl.dev.servers.ports import address
from schedctl.dev.servers.processes import DevProcess


class PartKind(StrEnum):
    """What a part of the cluster is."""

    ETCD = "etcd"
    POSTGRES = "postgres"
    MEMBER = "member"
    WORKER = "worker"


PORTS: Mapping[PartKind, tuple[str, ...]] = {
    PartKind.ETCD: ("client", "peer"),
    PartKind.POSTGRES: ("sql",),
    PartKind.MEMBER: ("grpc", "http"),
    PartKind.WORKER: ("http",),
}
"""The ports that each kind of part listens on."""


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """One process of the cluster. `process` is the last one started, None once we stopped it."""

    name: str
    kind: PartKind
    ports: Mapping[str, int] = field(default_factory=dict)
    process: DevProcess | None = None

    def alive(self) -> bool:
        """Tell whether it runs now (a paused one does)."""
        return self.process is not None and self.process.alive()

    def address(self, port: str) -> str:
        """`host:port` of one of its ports, by name."""
        return address(self.ports[port])


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster of one folder: its parts by name, in starting order, and what was asked for."""

    parts: Mapping[str, ClusterPart] = field(default_factory=dict)
    slots: int = 16
    overrides: tuple[str, ...] = ()
    foreign_dsn: str | None = None
    tls: bool = False
    password: str | None = field(default=None, repr=False)
    """Of the users of PostgreSQL and etcd; None: an older version made the cluster, and it runs."""

    def of(self, kind: PartKind) -> list[ClusterPart]:
        """The parts of one kind."""
        return [part for part in self.parts.values() if part.kind is kind]

    def living(self) -> Iterator[ClusterPart]:
        """The parts that run now."""
        return (part for part in self.parts.values() if part.alive())

    def with_part(self, part: ClusterPart) -> ClusterState:
        """The same with one part added or replaced."""
        return replace(self, parts={**self.parts, part.name: part})

    def without(self, names: set[str]) -> ClusterState:
        """The same without some parts."""
        kept = {name: part for name, part in self.parts.items() if name not in names}
        return replace(self, parts=kept)

    @property
    def dsn(self) -> str:
        """The database of the daemons."""
        if self.foreign_dsn:
            return self.foreign_dsn
        [server] = self.of(PartKind.POSTGRES)
        return postgres.dsn(server.ports["sql"], password=self.password)

    @property
    def etcd_user(self) -> dict[str, str]:
        """User and password of the daemons at etcd; empty when etcd asks for none."""
        return {} if self.password is None else {"user": etcd.USER, "password": self.password}


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The paths inside a cluster's folder D."""

    root: Path

    @property
    def state(self) -> Path:
        """Our own record."""
        return self.root / "state.json"

    @property
    def cluster(self) -> Path:
        """Everybody's record."""
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """Held by the command that is at work here."""
        return self.root / "lock"

    def log(self, name: str) -> Path:
        """What a part prints."""
        return self.root / f"{name}.log"

    def config(self, name: str) -> Path:
        """A daemon's configuration."""
        return self.root / f"{name}.toml"

    def data(self, name: str) -> Path:
        """A part's data: etcd's, PostgreSQL's, a worker's spool."""
        return self.root / name

    @property
    def tls(self) -> Path:
        """The cluster's authority, and what it has signed."""
        return self.root / "tls"

    def load(self) -> ClusterState | None:
        """What is remembered; None when no cluster was ever here."""
        try:
            stored = json.loads(self.state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        parts = (_part(name, entry) for name, entry in stored["parts"].items())
        return ClusterState(
            parts={part.name: part for part in parts},
            slots=stored["slots"],
            overrides=tuple(stored["overrides"]),
            foreign_dsn=stored["foreign_dsn"],
            tls=stored.get("tls", False),
            password=stored.get("password"),
        )

    def save(self, state: ClusterState) -> None:
        """Write both files, each at once or not at all."""
        stored = {
            "slots": state.slots,
            "overrides": list(state.overrides),
            "foreign_dsn": state.foreign_dsn,
            "tls": state.tls,
            "password": state.password,
            "parts": {
                part.name: {
                    "kind": part.kind,
                    "ports": part.ports,
                    "pid": part.process.pid if part.process else None,
                    "born": part.process.born if part.process else None,
                }
                for part in state.parts.values()
            },
        }
        _write(self.state, stored)
        _write(self.cluster, describe(self, state))


def describe(folder: ClusterFolder, state: ClusterState) -> dict[str, Any]:
    """The content of `cluster.json` (INTERFACE, Two commands)."""

    def pid(part: ClusterPart) -> int | None:
        return part.process.pid if part.process else None

    server = next(iter(state.of(PartKind.POSTGRES)), None)
    return {
        "etcd": [
            {"pid": pid(part), "endpoint": part.address("client"), **state.etcd_user}
            for part in state.of(PartKind.ETCD)
        ],
        "postgres": {"pid": pid(server) if server else None, "dsn": state.dsn},
        "members": [
            {
                "name": part.name,
                "pid": pid(part),
                "grpc": part.address("grpc"),
                "http": part.address("http"),
                "log": os.fspath(folder.log(part.name)),
            }
            for part in state.of(PartKind.MEMBER)
        ],
        "workers": [
            {
                "name": part.name,
                "pid": pid(part),
                "http": part.address("http"),
                "log": os.fspath(folder.log(part.name)),
            }
            for part in state.of(PartKind.WORKER)
        ],
    }


def _part(name: str, entry: Mapping[str, Any]) -> ClusterPart:
    process = DevProcess(entry["pid"], entry["born"]) if entry["pid"] is not None else None
    return ClusterPart(name, PartKind(entry["kind"]), entry["ports"], process)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.new")
    write_private(draft, json.dumps(content, indent=2) + "\n")
    draft.replace(path)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read: it may hold a password."""
    path.unlink(missing_ok=True)
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "w", encoding="utf-8") as file:
        file.write(text)
