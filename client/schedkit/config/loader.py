"""Configuration: a file, the environment and flags into frozen dataclasses.

    default  <  file (TOML)  <  environment (PREFIX_SECTION__KEY)  <  flags ({"section.key": …})

Invariants
- The dataclasses are the only list of keys. An unknown key or flag is an error with a suggestion;
  an unknown variable with the prefix is only a warning, because an environment is shared.
- All errors are reported at once, each with its place: `schedd.toml:7`, the variable, the flag. A
  rejected value is replaced by its default, to find further errors. No second error is reported for
  such a key, or for its section as a whole.
- If the file can't be read, its values are unknown: then only values from other sources are
  checked, each separately.
- If a key has two values, only the one with priority is checked.
- No message contains the value of a secret.
"""

import dataclasses
import difflib
import logging
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path as File
from typing import Any, Final, Literal, TypeVar, cast, get_origin, get_type_hints

from schedkit.config import values
from schedkit.config.values import SHAPES, hidden, without_none
from schedkit.errors import Misconfigured, NotNow
from schedkit.records import dataclass, replace

# Line numbers of the keys of a TOML text, for messages: tomllib doesn't keep them.
#
# A scan by line, not a parser: it finds headers and keys at the start of a line. A key inside an
# inline table gets the line of the nearest key around it.

_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DOTTED: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER: Final = re.compile(rf"\s*\[+\s*({_DOTTED})\s*\]")
_KEY: Final = re.compile(rf"\s*({_DOTTED})\s*=")

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Return the line (from 1) of each key and table, by full path; of duplicates the first."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = full = _names(header[1])
        elif key := _KEY.match(line):
            full = table + _names(key[1])
        else:
            continue
        for depth in range(1, len(full) + 1):
            found.setdefault(full[:depth], number)
    return found


def _names(dotted: str) -> Path:
    return tuple(name.strip("\"'") for name in re.findall(_NAME, dotted))


# The keys of a configuration are derived from its dataclasses. A field whose type is a dataclass is
# a section, such as `etcd: Etcd`. Every other field is a key, with one of the types of
# `values.SHAPES`. The path of a key names it everywhere: `etcd.endpoints` is `[etcd] endpoints`,
# `PREFIX_ETCD__ENDPOINTS` and `--etcd-endpoints`.


@dataclass(frozen=True, slots=True)
class SettingKey:
    """A setting: its path, its type (without None), and whether it may be shown."""

    path: Path
    kind: Any
    secret: bool

    @property
    def dotted(self) -> str:
        """`etcd.endpoints`."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """`--etcd-endpoints`."""
        return flag_of(self.path)

    def variable(self, prefix: str) -> str:
        """`SCHEDD_ETCD__ENDPOINTS`."""
        return f"{prefix}_" + "__".join(self.path).upper()


def flag_of(path: Path) -> str:
    return "--" + "-".join(path).replace("_", "-")


def secret(default: str | None) -> Any:
    """Return the default of a field that no message, log or `repr` shows."""
    return field(default=default, repr=False, metadata={"secret": True})


def section(kind: Any) -> type | None:
    """Return the dataclass of a section, `T` or `T | None`; None for the type of a key."""
    bare = without_none(kind)
    return bare if isinstance(bare, type) and dataclasses.is_dataclass(bare) else None


def fields_of(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Yield the settable fields of a dataclass, each with its resolved type."""
    kinds = get_type_hints(cls)
    for each in dataclasses.fields(cast("Any", cls)):
        if each.init:
            yield each, kinds[each.name]


def keys_of(cls: type, at: Path = ()) -> Iterator[SettingKey]:
    """Return all keys of a configuration, with those of its sections. Raises TypeError: a field has
    a type that can't be configured.
    """
    for each, kind in fields_of(cls):
        path = (*at, each.name)
        inner = section(kind)
        if inner is not None:
            yield from keys_of(inner, path)
            continue
        bare = without_none(kind)
        if get_origin(bare) is not Literal and bare not in SHAPES:
            raise TypeError(f"{'.'.join(path)}: no setting can have the type {kind}")
        yield SettingKey(path, bare, bool(each.metadata.get("secret")))


log = logging.getLogger(__name__)

C = TypeVar("C")

JOB_VARIABLES: Final = frozenset(
    f"SCHEDD_{name}"
    for name in (
        *("NAMESPACE", "JOB", "RUN_ID", "ATTEMPT", "FENCING_TOKEN", "WORKER", "PAYLOAD_FILE"),
        *("SCHEDULED_AT", "DEADLINE", "IDEMPOTENCY_KEY"),
    )
)
"""Variables that a job receives. Daemons and clients that it starts don't read them as settings."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Untimely(ConfigProblem):
    """An error that may be temporary: this host's clock, or its full disk."""


class ConfigErrors(Misconfigured):
    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def refusal(problems: Iterable[ConfigProblem]) -> Misconfigured:
    found = [*problems]
    if all(isinstance(one, Untimely) for one in found):
        return NotNow("\n".join(map(str, found)))
    return ConfigErrors(found)


def load(
    cls: type[C],
    *,
    file: File | None,
    environ: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, str | None],
    foreign: Collection[str] = JOB_VARIABLES,
    also: Callable[[C], Iterable[ConfigProblem]] = lambda _: (),
) -> C:
    """Load the configuration `cls` from all its sources.

    Args:
        cls: a dataclass; nested dataclasses are sections. Its optional method `faults` returns
            problems of values that can be read. It is called for each given section, and for the
            whole. A problem's `where` is a key of that section or of its subsections; empty: the
            whole section.
        file: TOML; must exist when given.
        environ: environment variables, including those of other programs.
        prefix: prefix of our variables, without the underscore: `SCHEDD`.
        flags: values by dotted path; None: the flag wasn't given.
        foreign: variables with our prefix that aren't settings.
        also: further problems, reported as by `faults` of the whole.

    Raises:
        ConfigErrors: lists every problem.
        NotNow: every problem is `Untimely`.
    """
    sources = _Sources({key.path: key for key in keys_of(cls)}, prefix, flags.keys())
    if file is not None:
        sources.read_file(file)
    sources.read_environ(environ, foreign)
    sources.read_flags(flags)
    config: C = _build(cls, (), sources)
    sources.judge((), also(config))
    if sources.problems:
        raise refusal(sources.problems)
    return config


def masked(config: Any) -> dict[str, object]:
    """Return a configuration for people and logs, as dotted paths to values. Secrets, and the part
    of an address before its `@`, are shown as `***`.
    """
    shown: dict[str, object] = {}
    for key in keys_of(type(config)):
        value = _value_at(config, key)
        shown[key.dotted] = "***" if key.secret and value else _shown(value)
    return shown


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return hidden(value) if isinstance(value, str) else value


def changed(old: C, new: C) -> list[str]:
    """Return the dotted paths of the values that differ between two configurations."""
    return [key.dotted for key in keys_of(type(old)) if _value_at(old, key) != _value_at(new, key)]


def _value_at(config: Any, key: SettingKey) -> Any:
    for name in key.path:
        config = None if config is None else getattr(config, name)
    return config


@dataclass(frozen=True, slots=True)
class _Given:
    where: str
    value: Any
    is_text: bool


@dataclass(slots=True)
class _Sources:
    """The values given for each key; a later source overrides an earlier one."""

    keys: Mapping[Path, SettingKey]
    prefix: str
    flags: Collection[str]
    """Known flags, by dotted path."""
    given: dict[Path, _Given] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)
    """Keys whose value is invalid or missing, and sections that can't be built."""
    unread: bool = False
    """Whether the file can't be read."""

    def problem(self, where: str, what: str) -> None:
        self.problems.append(ConfigProblem(where, what))

    def read_file(self, file: File) -> None:
        self.unread = True
        try:
            text = file.read_text("utf-8")
            table = tomllib.loads(text)
        except OSError as error:
            self.problem(str(file), f"the file can't be read: {error.strerror}")
        except UnicodeDecodeError:
            self.problem(str(file), "the file isn't valid UTF-8")
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"\(at line (\d+)", str(error))
            line = at[1] if at else text.count("\n") + 1
            self.problem(f"{file}:{line}", f"the file isn't valid TOML: {error}")
        except RecursionError:
            deepest = max(
                enumerate(text.splitlines(), 1), key=lambda at: at[1].count("[") + at[1].count("{")
            )
            key = next((".".join(path) for path in [*lines_of(deepest[1])][-1:]), "the value")
            self.problem(f"{file}:{deepest[0]}", f"{key} is nested too deep to be read")
        else:
            self.unread = False
            self._walk(table, (), str(file), lines_of(text))

    def _walk(self, table: dict[str, Any], at: Path, file: str, lines: dict[Path, int]) -> None:
        sections = {path[:depth] for path in self.keys for depth in range(len(path))}
        for name, value in table.items():
            path = (*at, name)
            around = (lines.get(path[:depth]) for depth in range(len(path), 0, -1))
            line = next(filter(None, around), None)
            where = f"{file}:{line}" if line else file
            if path in self.keys:
                self.given[path] = _Given(where, value, is_text=False)
            elif path not in sections:
                near = sorted({each[len(at)] for each in (*self.keys, *sections) if _in(each, at)})
                self.problem(where, f"unknown key {'.'.join(path)!r}{_suggestion(name, near)}")
            elif isinstance(value, dict):
                self._walk(value, path, file, lines)
            else:
                self.problem(where, f"{'.'.join(path)} must be a section: [{'.'.join(path)}]")

    def read_environ(self, environ: Mapping[str, str], foreign: Collection[str]) -> None:
        known = {key.variable(self.prefix): key for key in self.keys.values()}
        for name in sorted(environ):
            if not name.startswith(f"{self.prefix}_") or name in foreign:
                continue
            if name in known:
                self.given[known[name].path] = _Given(name, environ[name], is_text=True)
            else:
                log.warning(
                    "unknown variable %s ignored%s",
                    name,
                    _suggestion(name, known, f"{self.prefix}_"),
                )

    def read_flags(self, flags: Mapping[str, str | None]) -> None:
        known = {key.dotted: key for key in self.keys.values()}
        for dotted, value in flags.items():
            if value is None:
                continue
            flag = flag_of(tuple(dotted.split(".")))
            if dotted in known:
                self.given[known[dotted].path] = _Given(flag, value, is_text=True)
            else:
                near = [key.flag for key in known.values()]
                self.problem(flag, f"unknown flag{_suggestion(flag, near, '--')}")

    def value(self, key: SettingKey) -> Any:
        """Return the converted value of a given key, or MISSING after a problem."""
        given = self.given[key.path]
        convert = values.from_text if given.is_text else values.from_toml
        try:
            return convert(key.kind, given.value)
        except ValueError as error:
            shown = "" if key.secret else f", not {hidden(repr(given.value))}"
            self.problem(given.where, f"{key.dotted} {error}{shown}")
            self.reported.add(key.path)
            return MISSING

    def missing(self, key: SettingKey) -> None:
        """Report a required key without a value."""
        self.reported.add(key.path)
        if self.unread:
            return
        flag = f" or {key.flag}" if key.dotted in self.flags else ""
        hint = f"set it in the file{',' if flag else ' or'} by {key.variable(self.prefix)}{flag}"
        self.problem(key.dotted, f"a value is required: {hint}")

    def judge(self, at: Path, found: Iterable[ConfigProblem]) -> None:
        """Add the problems that a section reports about its values."""
        for problem in () if self.unread else found:
            path = (*at, *problem.where.split(".")) if problem.where else at
            if path not in self.reported and not (
                path and any(_in(each, path) for each in self.reported)
            ):
                dotted = ".".join(path) or "configuration"
                inside = (given for key, given in self.given.items() if path and _in(key, path))
                if (given := self.given.get(path) or next(inside, None)) is None:
                    placed = replace(problem, where=dotted)
                else:  # the place of its value, or the beginning of its section
                    what = f"{dotted}: {problem.what}"
                    placed = replace(problem, where=given.where, what=what)
                self.problems.append(placed)


def _build(cls: type, at: Path, sources: _Sources) -> Any:
    """Return the dataclass from its sources, which collect problems; a draft if there are any."""
    made: dict[str, Any] = {}
    for each, kind in fields_of(cls):
        path = (*at, each.name)
        inner = section(kind)
        optional = each.default is not MISSING or each.default_factory is not MISSING
        if inner is not None:
            if not optional or any(_in(given, path) for given in sources.given):
                made[each.name] = _build(inner, path, sources)
            continue
        key = sources.keys[path]
        value = MISSING
        if path in sources.given:
            value = sources.value(key)
        elif not optional:
            sources.missing(key)
        if value is MISSING and not optional:
            value = values.nothing(key.kind)
        if value is not MISSING:
            made[each.name] = value
    config: Any
    try:
        config = cls(**made)
    except (ValueError, Misconfigured) as error:
        name = at[-1] if at else ""
        sources.judge(at, [ConfigProblem("", str(error).removeprefix(f"{name}: "))])
        sources.reported.add(at)
        config = object.__new__(cls)  # a draft, without its `__post_init__` checks
        for each in fields(cls):
            factory = each.default_factory
            default = each.default if factory is MISSING else factory()
            object.__setattr__(config, each.name, made.get(each.name, default))
    if hasattr(config, "faults"):
        sources.judge(at, config.faults())
    return config


def _in(path: Path, at: Path) -> bool:
    return len(path) > len(at) and path[: len(at)] == at


def _suggestion(name: str, near: Iterable[str], begin: str = "") -> str:
    """Return a suggestion, if a known name is close; a common prefix doesn't count."""
    known = {each.removeprefix(begin): each for each in near}
    close = difflib.get_close_matches(name.removeprefix(begin), known, n=1, cutoff=0.6)
    return f"; did you mean {known[close[0]]!r}?" if close else ""
