"""Manifests: YAML documents that become jobs, pools and calendars, with the line of every problem.

    text ──compose──▶ nodes with marks ──▶ plain values (all texts) ──One JSON──▶ Job
                                      ╰──▶ path → line, for problems

Scalars have the types of the model, not YAML's: `on`, `010` and `22:30` stay text until then.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import yaml
from google.protobuf.message import Message

from schedclient.calls.base import NamespacedCalls
from schedctl.failure import CommandFailure, standard_input
from schedctl.manifests.file_kinds import FileKind, Foreign, foreign_document, kind_of, plain_value
from schedkit.protojson import FormErrors, PlainScalar, from_json
from schedkit.protojson import Path as FieldPath
from schedkit.protojson.problems import did_you_mean
from schedkit.records import dataclass
from schedproto.v1 import calendar_service_pb2, job_pb2, pool_service_pb2

C = TypeVar("C", bound=NamespacedCalls)
S = TypeVar("S", bound=Message)
Described = job_pb2.Job | pool_service_pb2.Pool | calendar_service_pb2.Calendar
MESSAGES: Final[dict[str, type[Described]]] = {
    "job": job_pb2.Job,
    "pool": pool_service_pb2.Pool,
    "calendar": calendar_service_pb2.Calendar,
}
"""The message of each kind of document."""
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
DEEPEST: Final = 100
"""The deepest nesting of a document. JSON parsers reject deeper payloads anyway."""
TOO_DEEP: Final = f"the manifest nests lists and objects more than {DEEPEST} levels deep"
LARGEST: Final = 200_000
"""The most values in a document, with aliases expanded: more than a payload of 256 KiB holds."""
QUOTE: Final = 'quote it: "*/5 * * * *" (in YAML a * begins an alias)'


CRONTAB: Final = "is a crontab: cron lint -f and forecast -f read it"


TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "null"))
"""The tags of nodes without an explicit tag."""


@dataclass(frozen=True, slots=True)
class ManifestFault:
    """A problem of a manifest, and where: `jobs.yaml:12`."""

    where: str
    problem: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Manifest(Generic[S]):
    """A document that describes an object. `lines`: of a job's cron expressions, or of `every`."""

    where: str
    spec: S
    lines: tuple[int, ...] = ()


JobManifest: TypeAlias = Manifest[job_pb2.Job]
PoolManifest: TypeAlias = Manifest[pool_service_pb2.Pool]
CalendarManifest: TypeAlias = Manifest[calendar_service_pb2.Calendar]


@dataclass(frozen=True, slots=True)
class ReadManifests:
    """All valid documents."""

    jobs: Sequence[JobManifest]
    pools: Sequence[PoolManifest]
    calendars: Sequence[CalendarManifest]


def placed(calls: C, namespace: str) -> C:
    """Return the calls for objects of a manifest's namespace; empty: the client's."""
    return calls.in_namespace(namespace) if namespace else calls


class _Unfit(yaml.MarkedYAMLError):
    """Valid YAML that isn't accepted: tags, keys that aren't text, too deep, or too large. A few
    hundred bytes of aliases can expand to gigabytes.
    """

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.BaseLoader):
    """A loader that reads scalars as text and rejects deep nesting before the stack overflows."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # theirs has no types
            raise _Unfit(f"{TOO_DEEP}: use fewer levels", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def read_or_fail(files: Sequence[str]) -> ReadManifests:
    """Read files, folders (their *.yaml, *.yml, *.json) and `-`. Raises CommandFailure with all
    problems.
    """
    try:
        found = [one for name, content in _contents(files) for one in parse(name, content)]
    except OSError as error:
        where = error.filename or ", ".join(files)
        raise CommandFailure(
            f"the manifest {where} can't be read: {error.strerror}",
            reason="NO_FILE",
            remedy="check the file's name and permissions",
        ) from error
    faults = [one for one in found if isinstance(one, ManifestFault)]
    kinds: list[list[Any]] = [
        [one for one in found if isinstance(one, Manifest) and isinstance(one.spec, kind)]
        for kind in MESSAGES.values()
    ]
    faults += [fault for described in kinds for fault in _doubles(described)]
    if not faults:
        return ReadManifests(*kinds)
    first, *others = faults
    raise CommandFailure(
        f"{first.where}: {first.problem}",
        reason="WRONG_MANIFEST",
        details=[
            f"{fault.where}: {fault.problem}" + (f" ({fault.hint})" if fault.hint else "")
            for fault in others
        ],
        remedy=first.hint or "fix the manifest and apply it again; nothing was stored",
    )


def parse(name: str, content: bytes | str) -> Iterator[Manifest[Any] | ManifestFault]:
    """Yield the documents of one text; `name` is its file."""
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"the file isn't valid UTF-8: byte 0x{error.object[error.start]:02x}"
        yield ManifestFault(f"{name}:{line}", problem, "save the file as UTF-8")
        return
    kind = kind_of(text)
    if isinstance(kind, Foreign):
        yield ManifestFault(name, f"the file is {kind}")
        return
    try:
        documents = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        yield (
            ManifestFault(name, CRONTAB) if kind is FileKind.CRONTAB else _syntax(name, text, error)
        )
        return
    if kind is FileKind.CRONTAB:
        yield ManifestFault(name, CRONTAB)
        return
    for node in documents:
        if node is not None and (foreign := foreign_document(plain_value(node))):
            yield ManifestFault(f"{name}:{node.start_mark.line + 1}", f"the document is {foreign}")
        elif isinstance(node, yaml.SequenceNode):  # what `job list -o json` prints
            for one in node.value:
                yield from _document(name, one)
        elif node is not None and not (isinstance(node, yaml.ScalarNode) and not node.value):
            yield from _document(name, node)


def _document(name: str, node: yaml.Node) -> Iterator[Manifest[Any] | ManifestFault]:
    document = _Document(name)
    start = document.place(node)
    try:
        value = document.plain(node)
    except _Unfit as error:
        yield _syntax(name, "", error)
        return
    yield from document.doubles
    if not isinstance(value, dict):
        yield ManifestFault(start, "a manifest must be an object with keys, such as name: NAME")
        return
    lines, first = document.lines, node.start_mark.line
    kind = value.pop("kind", "job")
    if kind not in MESSAGES:
        where = f"{name}:{lines.get(('kind',), first) + 1}"
        yield ManifestFault(where, f"kind: {kind!r} is unknown", did_you_mean(str(kind), MESSAGES))
        return
    try:
        spec = from_json(value, MESSAGES[kind], strings=True)
    except FormErrors as errors:
        for problem in errors.problems:
            text = f"{problem.where}: {problem.message}" if problem.path else problem.message
            line = _line(lines, problem.path, first) + 1
            yield ManifestFault(f"{name}:{line}", text, problem.suggestion)
        return
    if not spec.name:
        yield ManifestFault(start, "name is missing", f"give the {kind} a name")
    elif not document.doubles:
        paths: list[FieldPath] = [("every",)] if ("every",) in lines else []
        if isinstance(spec, job_pb2.Job) and spec.cron:
            paths = [("cron", at) for at in range(len(spec.cron))]
        yield Manifest(start, spec, tuple(_line(lines, path, 0) + 1 for path in paths))


@dataclass(slots=True)
class _Document:
    """A document of the file `name`: the line of each path, and the keys that are given twice."""

    name: str
    lines: dict[FieldPath, int] = field(default_factory=dict)
    doubles: list[ManifestFault] = field(default_factory=list)

    def place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def plain(self, node: yaml.Node, path: FieldPath = ()) -> Any:
        """Return the node as dicts, lists and texts; record the line of each path."""
        self.lines.setdefault(path, node.start_mark.line)
        if node.tag not in TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _Unfit(f"the YAML tag {tag} isn't supported: remove the tag", node.start_mark)
        if len(path) > DEEPEST:  # an alias may hold itself
            raise _Unfit(TOO_DEEP, node.start_mark)
        if len(self.lines) > LARGEST:
            excess = f"the manifest has more than {LARGEST:,} values, with its aliases expanded"
            raise _Unfit(excess, node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(inner, (*path, at)) for at, inner in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode), "compose resolves aliases"
        beside_key = not path or isinstance(path[-1], str)
        if node.style is None and beside_key and node.value in ("", "~", "null"):
            return None  # as if the key were missing; in a list it is text
        return PlainScalar(node.value) if node.style is None else node.value

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "a list or an object is used as a key: write text as the key"
                raise _Unfit(problem, key.start_mark)
            word = str(key.value)
            here = (*path, word)
            if word in found:
                fault = ManifestFault(self.place(key), f"the key {word} is given twice")
                self.doubles.append(fault)
            self.lines[here] = key.start_mark.line
            found[word] = self.plain(inner, here)
        return found


def _line(lines: dict[FieldPath, int], path: FieldPath, default: int) -> int:
    """Return the line of the path, or of its nearest parent."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, default)


def _syntax(name: str, text: str, error: yaml.YAMLError) -> ManifestFault:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ManifestFault(name, f"the file isn't valid YAML: {error}")
    number = error.problem_mark.line
    if isinstance(error, _Unfit):
        return ManifestFault(f"{name}:{number + 1}", str(error.problem))
    lines = text.split("\n")
    written = lines[number] if number < len(lines) else ""
    starred = "*" in written and error.context in (
        "while scanning an alias",
        "while parsing a block mapping",
        None,
    )
    quote = QUOTE if starred else _quoted(written)
    return ManifestFault(
        f"{name}:{number + 1}", f"the file isn't valid YAML: {error.problem}", quote
    )


def _quoted(written: str) -> str:
    """Suggest quotes for a value that begins with a character reserved in YAML: `cron: @daily`."""
    found = re.search(r"(?:[:-]\s+|[\[,]\s*|^\s*)([@`%][^,\]}]*?)\s*(?:\s#.*|[,\]}].*)?$", written)
    return f'quote it: "{found[1]}" (in YAML {found[1][0]} can\'t begin a value)' if found else ""


def _doubles(found: Sequence[Manifest[Any]]) -> Iterator[ManifestFault]:
    seen: dict[tuple[str, str], str] = {}
    for one in found:
        key = (one.spec.namespace, one.spec.name)
        if key in seen:
            yield ManifestFault(one.where, f"{one.spec.name} is already defined in {seen[key]}")
        seen.setdefault(key, one.where)


def _contents(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in files:
        if name == "-":
            yield "stdin", standard_input()
            continue
        path = Path(name)
        inner = (
            sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)
            if path.is_dir()
            else [path]
        )
        for file in inner:
            yield str(file), file.read_bytes()
