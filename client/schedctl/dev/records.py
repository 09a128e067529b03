"""The records in a cluster's folder: `state.json`, internal, and `cluster.json`, public.

`state.json` is authoritative: each part with its ports and its process, and the options of `up`, so
that `up` without options restores the same cluster. `cluster.json` is a public format, written from
it and never read here. A part that `down` stopped has `"pid": null` there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from schedctl.dev.servers import etcd, postgres
from schedctl.dev.servers.processes import DevProcess, address
from schedkit.records import dataclass, replace


class PartKind(StrEnum):
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
"""The ports of each kind of part."""


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """A part of the cluster. `process` is the last one started; None after `down`."""

    name: str
    kind: PartKind
    ports: Mapping[str, int] = field(default_factory=dict)
    process: DevProcess | None = None

    def alive(self) -> bool:
        """Return whether the process runs; a paused one does."""
        return self.process is not None and self.process.alive()

    def address(self, port: str) -> str:
        return address(self.ports[port])


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster of one folder: its parts by name, in starting order, and the options of `up`."""

    parts: Mapping[str, ClusterPart] = field(default_factory=dict)
    slots: int = 16
    overrides: tuple[str, ...] = ()
    foreign_dsn: str | None = None
    tls: bool = False
    password: str = field(default="", repr=False)
    """Password of PostgreSQL and etcd."""

    def parts_of_kind(self, kind: PartKind) -> list[ClusterPart]:
        return [part for part in self.parts.values() if part.kind is kind]

    def living(self) -> Iterator[ClusterPart]:
        return (part for part in self.parts.values() if part.alive())

    def with_part(self, part: ClusterPart) -> ClusterState:
        return replace(self, parts={**self.parts, part.name: part})

    @property
    def dsn(self) -> str:
        if self.foreign_dsn:
            return self.foreign_dsn
        [server] = self.parts_of_kind(PartKind.POSTGRES)
        return postgres.dsn(server.ports["sql"], password=self.password)

    @property
    def etcd_user(self) -> dict[str, str]:
        return {"user": etcd.USER, "password": self.password}


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The paths inside a cluster's folder D."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """The file that a command locks while it works on the folder."""
        return self.root / "lock"

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def config(self, name: str) -> Path:
        return self.root / f"{name}.toml"

    def data(self, name: str) -> Path:
        """Return the path of a part's data: etcd's, PostgreSQL's, a worker's spool."""
        return self.root / name

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    def load(self) -> ClusterState | None:
        try:
            stored = json.loads(self.state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        for entry in stored["parts"].values():
            entry["kind"] = PartKind(entry["kind"])
            entry["process"] = entry["process"] and DevProcess(**entry["process"])
        stored["parts"] = {name: ClusterPart(**part) for name, part in stored["parts"].items()}
        stored["overrides"] = tuple(stored["overrides"])
        return ClusterState(**stored)

    def save(self, state: ClusterState) -> None:
        """Write both files, each atomically."""
        _write(self.state, asdict(state))
        _write(self.cluster, describe(self, state))


def describe(folder: ClusterFolder, state: ClusterState) -> dict[str, Any]:
    """Return the content of `cluster.json`."""

    def pid(part: ClusterPart) -> int | None:
        return part.process.pid if part.process else None

    def daemons(kind: PartKind) -> list[dict[str, Any]]:
        return [
            {
                "name": part.name,
                "pid": pid(part),
                **{port: part.address(port) for port in PORTS[kind]},
                "log": os.fspath(folder.log(part.name)),
            }
            for part in state.parts_of_kind(kind)
        ]

    server = next(iter(state.parts_of_kind(PartKind.POSTGRES)), None)
    return {
        "etcd": [
            {"pid": pid(part), "endpoint": part.address("client"), **state.etcd_user}
            for part in state.parts_of_kind(PartKind.ETCD)
        ],
        "postgres": {"pid": pid(server) if server else None, "dsn": state.dsn},
        "members": daemons(PartKind.MEMBER),
        "workers": daemons(PartKind.WORKER),
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.new")
    write_private(draft, json.dumps(content, indent=2) + "\n")
    draft.replace(path)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read: it may hold a password."""
    path.unlink(missing_ok=True)
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "w", encoding="utf-8") as file:
        file.write(text)
