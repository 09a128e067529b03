"""History of a fault run: one directory of plain files, with many writers and one reader.

    recorder = Recorder(directory)          # in any process, as many as there are
    recorder.nemesis(Nemesis(at=time.time(), id=7, fault="kill", target="schedd-1", phase="begin"))
    …
    verdict = check(History.read(directory))

Rules
    A record is one line of JSON in one file, appended by one write(2) to a file opened with
    O_APPEND: writers never mix their lines, whether threads, processes or shell jobs.
    Nothing is ever rewritten but `meta.json` and `verdict.json`, which are replaced whole.
    A field that isn't known is null; a field that isn't there has the record's default; an
    unknown field is damage, so that a misspelt one isn't lost in silence.
    A line that can't be read (its writer was killed midway) is kept under `damaged`, never dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from faults.records import (
    VERSION,
    Change,
    ClientEvent,
    Commit,
    Definition,
    Leftovers,
    Meta,
    Nemesis,
    ProbeEvent,
    Resource,
    Restore,
    Row,
    Schedule,
    Stall,
)

__all__ = [
    "Change",
    "ClientEvent",
    "Commit",
    "Damaged",
    "Definition",
    "History",
    "Leftovers",
    "Meta",
    "Nemesis",
    "NoHistory",
    "ProbeEvent",
    "Recorder",
    "Resource",
    "Restore",
    "Row",
    "Schedule",
    "Stall",
]

T = TypeVar("T")


class NoHistory(Exception):
    """The directory holds no history that can be read; the message says what is missing."""


class Recorder:
    """Writes a history. Any number of recorders may write to one directory at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for folder in ("probes", "initial", "database", "logs"):
            (directory / folder).mkdir(parents=True, exist_ok=True)

    def meta(self, meta: Meta) -> None:
        """Say what the run is; again at its end, when `ended` and `quiet` are known."""
        _replace(self.directory / "meta.json", asdict(meta))

    def job(self, definition: Definition) -> None:
        """A client asks for this definition (write it before, or as soon as its ids are known)."""
        self._append("jobs.jsonl", asdict(definition))

    def client(self, event: ClientEvent) -> None:
        """A call begins or ends."""
        self._append("clients.jsonl", asdict(event))

    def nemesis(self, event: Nemesis) -> None:
        """A fault begins, is seen to work, ends, has healed."""
        self._append("nemesis.jsonl", asdict(event))

    def commits(self, commits: Iterable[Commit]) -> None:
        """Transactions in commit order; one writer, for the order of lines is the order."""
        for commit in commits:
            self._append("commits.jsonl", asdict(commit))

    def initial(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows of a table as they stood when the first commit was yet to come."""
        self._rows("initial", table, rows)

    def final(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows of a table as they stand at the end, values as PostgreSQL prints them."""
        self._rows("database", table, rows)

    def stopped(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows of a table as they stood when the database was stopped, to be put back."""
        self._rows("stopped", table, rows)

    def restored(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows of a table as they stood when it had been put back, before any commit."""
        self._rows("restored", table, rows)

    def restore(self, restore: Restore) -> None:
        """The database was put back."""
        _replace(self.directory / "restore.json", asdict(restore))

    def resource(self, resource: Resource) -> None:
        """Return the file of what processes hold."""
        self._append("resources.jsonl", asdict(resource))

    def stall(self, stall: Stall) -> None:
        """The machine stood still."""
        self._append("stalls.jsonl", asdict(stall))

    def leftovers(self, leftovers: Leftovers) -> None:
        """Return the file of what healing left behind."""
        _replace(self.directory / "leftovers.json", asdict(leftovers))

    def verdict(self, verdict: Mapping[str, Any]) -> None:
        """Return the file of the checker's verdict."""
        _replace(self.directory / "verdict.json", verdict)

    def probe_file(self, host: str) -> Path:
        """Where the probe jobs of one worker's host append their lines (shell: `>>`)."""
        return self.directory / "probes" / f"{host}.jsonl"

    def log(self, process: str) -> Path:
        """Where a process's log is kept."""
        return self.directory / "logs" / f"{process}.log"

    def _rows(self, folder: str, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        (self.directory / folder).mkdir(exist_ok=True)
        for row in rows:
            self._append(f"{folder}/{table}.jsonl", row)
        (self.directory / folder / f"{table}.jsonl").touch()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(self.directory / name, flags, 0o666)
        try:
            if os.write(handle, line) != len(line):
                raise OSError(f"{name}: a record was written in part, the disk is full")
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that is no record: where it stands and what is wrong with it."""

    file: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """All that a run left, in memory. Probe events are in order of their time."""

    meta: Meta
    jobs: tuple[Definition, ...] = ()
    clients: tuple[ClientEvent, ...] = ()
    probes: tuple[ProbeEvent, ...] = ()
    nemesis: tuple[Nemesis, ...] = ()
    commits: tuple[Commit, ...] = ()
    initial: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    database: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    resources: tuple[Resource, ...] = ()
    stalls: tuple[Stall, ...] = ()
    leftovers: Leftovers | None = None
    damaged: tuple[Damaged, ...] = ()
    restore: Restore | None = None
    stopped: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    restored: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a directory that a `Recorder` wrote; `NoHistory`: none there, or another version."""
        if not (directory / "meta.json").is_file():
            raise NoHistory(f"{directory} holds no history: it has no meta.json")
        meta = _make(Meta, json.loads((directory / "meta.json").read_text()))
        if meta.version != VERSION:
            raise NoHistory(f"{directory} is of version {meta.version}; this reads {VERSION}")
        reader = _Reader(directory)
        leftovers, restore = directory / "leftovers.json", directory / "restore.json"
        return cls(
            meta=meta,
            jobs=tuple(reader.records(Definition, "jobs.jsonl")),
            clients=tuple(reader.records(ClientEvent, "clients.jsonl")),
            probes=tuple(sorted(reader.probes(), key=lambda event: event.at)),
            nemesis=tuple(reader.records(Nemesis, "nemesis.jsonl")),
            commits=tuple(reader.records(Commit, "commits.jsonl")),
            initial=dict(reader.tables("initial")),
            database=dict(reader.tables("database")),
            resources=tuple(reader.records(Resource, "resources.jsonl")),
            stalls=tuple(reader.records(Stall, "stalls.jsonl")),
            leftovers=(
                _make(Leftovers, json.loads(leftovers.read_text())) if leftovers.exists() else None
            ),
            restore=(_make(Restore, json.loads(restore.read_text())) if restore.exists() else None),
            stopped=dict(reader.tables("stopped")),
            restored=dict(reader.tables("restored")),
            damaged=tuple(reader.damaged),
        )


class _Reader:
    """Reads the files of lines; what is no record is put aside with its place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damaged: list[Damaged] = []

    def records(self, kind: type[T], name: str) -> Iterator[T]:
        for number, values in self._lines(name):
            try:
                yield _make(kind, values)
            except (TypeError, ValueError, KeyError) as error:
                self.damaged.append(Damaged(name, number, f"no {kind.__name__}: {error}"))

    def probes(self) -> Iterator[ProbeEvent]:
        for path in sorted((self.directory / "probes").glob("*.jsonl")):
            yield from self.records(ProbeEvent, f"probes/{path.name}")

    def tables(self, folder: str) -> Iterator[tuple[str, tuple[Row, ...]]]:
        for path in sorted((self.directory / folder).glob("*.jsonl")):
            yield path.stem, tuple(row for _, row in self._lines(f"{folder}/{path.name}"))

    def _lines(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.directory / name
        if not path.exists():
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    values = json.loads(line)
                except ValueError as error:
                    self.damaged.append(Damaged(name, number, f"{error}: {line[:200]!r}"))
                    continue
                yield number, values


def _make(kind: type[T], values: dict[str, Any]) -> T:
    """A record of JSON values; raises TypeError for a field missing or unknown."""
    for name, convert in _NESTED.get(kind, {}).items():
        if values.get(name) is not None:
            values[name] = convert(values[name])
    return kind(**values)


def _pairs(found: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in found)


_NESTED: dict[type, dict[str, Callable[[Any], Any]]] = {
    Meta: {"quiet": _pairs, "legs": _pairs},
    Definition: {"schedule": lambda values: _make(Schedule, values)},
    Commit: {"changes": lambda changes: tuple(_make(Change, change) for change in changes)},
    Leftovers: dict.fromkeys((each.name for each in fields(Leftovers)), tuple),
}


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Put the file there whole: a reader sees the old file or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=2) + "\n")
    fresh.replace(path)
