"""Configuration: a file, the environment and flags into frozen dataclasses.

    default  <  file (TOML)  <  environment (PREFIX_SECTION__KEY)  <  flags ({"section.key": …})

Invariants
- The dataclasses are the only list of keys: nothing is accepted that they don't have. An unknown
  key or flag is an error with a suggestion; an unknown variable with the prefix only a warning,
  for an environment belongs to many.
- All errors come at once, each with its place: `schedd.toml:7`, the variable, the flag.
- Of two values for one key only the stronger is judged.
- The value of a secret stands in no message.
"""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path as File
from typing import Any, Final, TypeVar

from schedkit.config import values
from schedkit.config.lines import Path, lines_of, nearest
from schedkit.config.schema import Key, fields_of, flag_of, keys_of, secret, section
from schedkit.errors import Misconfigured

__all__ = ["JOB_VARIABLES", "ConfigErrors", "Problem", "load", "masked", "secret"]

log = logging.getLogger(__name__)

C = TypeVar("C")

JOB_VARIABLES: Final = frozenset(
    f"SCHEDD_{name}"
    for name in (
        *("NAMESPACE", "JOB", "RUN_ID", "ATTEMPT", "FENCING_TOKEN", "WORKER", "PAYLOAD_FILE"),
        *("SCHEDULED_AT", "DEADLINE", "IDEMPOTENCY_KEY"),
    )
)
"""What a job sees. A daemon or a client that a job starts never takes it for configuration."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change, and where it stands."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ConfigErrors(Misconfigured):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load(
    cls: type[C],
    *,
    file: File | None,
    environ: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, str | None],
    foreign: Collection[str] = JOB_VARIABLES,
) -> C:
    """The configuration `cls` from all its sources.

    Args:
        cls: a dataclass; nested dataclasses are sections. Its `__post_init__` may raise
            ValueError for values that don't go together.
        file: TOML; must exist when given.
        environ: variables, those of others among them.
        prefix: of ours, without the underscore: `SCHEDD`.
        flags: values by dotted path; None is a flag that wasn't given.
        foreign: variables with our prefix that are not ours.

    Raises:
        ConfigErrors: with every problem.
    """
    sources = _Sources({key.path: key for key in keys_of(cls)}, prefix)
    if file is not None:
        sources.read_file(file)
    sources.read_environ(environ, foreign)
    sources.read_flags(flags)
    config = _build(cls, (), sources)
    if sources.problems:
        raise ConfigErrors(sources.problems)
    assert isinstance(config, cls)
    return config


def masked(config: Any) -> dict[str, object]:
    """A configuration for people and logs: dotted paths to values, secrets as `***`."""
    shown: dict[str, object] = {}
    for key in keys_of(type(config)):
        value = _of(config, key)
        shown[key.dotted] = "***" if key.secret and value else value
    return shown


def changed(old: C, new: C) -> list[str]:
    """The dotted paths of what differs between two configurations."""
    return [key.dotted for key in keys_of(type(old)) if _of(old, key) != _of(new, key)]


def _of(config: Any, key: Key) -> Any:
    for name in key.path:
        config = None if config is None else getattr(config, name)
    return config


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was written, and where."""

    where: str
    value: Any
    is_text: bool


@dataclass(slots=True)
class _Sources:
    """What was given for which key; a later reading is the stronger."""

    keys: Mapping[Path, Key]
    prefix: str
    given: dict[Path, _Given] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, where: str, what: str) -> None:
        self.problems.append(Problem(where, what))

    def read_file(self, file: File) -> None:
        try:
            text = file.read_text("utf-8")
            table = tomllib.loads(text)
        except OSError as error:
            self.problem(str(file), f"can't be read: {error.strerror}")
        except UnicodeDecodeError:
            self.problem(str(file), "is not UTF-8")
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"\(at line (\d+)", str(error))
            line = at[1] if at else text.count("\n") + 1
            self.problem(f"{file}:{line}", f"is not TOML: {error}")
        else:
            self._walk(table, (), str(file), lines_of(text))

    def _walk(self, table: dict[str, Any], at: Path, file: str, lines: dict[Path, int]) -> None:
        sections = {path[:depth] for path in self.keys for depth in range(len(path))}
        for name, value in table.items():
            path = (*at, name)
            line = nearest(lines, path)
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
                log.warning("unknown variable %s ignored%s", name, _suggestion(name, known))

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
                self.problem(flag, f"unknown flag{_suggestion(flag, near)}")

    def value(self, key: Key) -> Any:
        """The converted value of a key that was given, or MISSING after a problem."""
        given = self.given[key.path]
        convert = values.from_text if given.is_text else values.from_toml
        try:
            return convert(key.kind, given.value)
        except ValueError as error:
            shown = "" if key.secret else f", not {given.value!r}"
            self.problem(given.where, f"{key.dotted} {error}{shown}")
            return MISSING


def _build(cls: type, at: Path, sources: _Sources) -> Any:
    """The dataclass from its sources; None after a problem (which the sources then hold)."""
    made: dict[str, Any] = {}
    whole = True
    for each, kind in fields_of(cls):
        path = (*at, each.name)
        inner = section(kind)
        optional = each.default is not MISSING or each.default_factory is not MISSING
        if inner is not None:
            if optional and not any(_in(given, path) for given in sources.given):
                continue
            made[each.name] = _build(inner, path, sources)
            whole = whole and made[each.name] is not None
        elif path in sources.given:
            made[each.name] = sources.value(sources.keys[path])
            whole = whole and made[each.name] is not MISSING
        elif not optional:
            key = sources.keys[path]
            hint = f"set it in the file, by {key.variable(sources.prefix)} or {key.flag}"
            sources.problem(key.dotted, f"is missing; {hint}")
            whole = False
    return _made(cls, made, at, sources) if whole else None


def _made(cls: type, made: dict[str, Any], at: Path, sources: _Sources) -> Any:
    try:
        return cls(**made)
    except ValueError as error:
        sources.problem(".".join(at) or "configuration", str(error))
        return None


def _in(path: Path, at: Path) -> bool:
    return len(path) > len(at) and path[: len(at)] == at


def _suggestion(name: str, near: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(near), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
