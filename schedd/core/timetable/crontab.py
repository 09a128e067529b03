r"""A crontab, as cron reads it: lines with their schedule, user, command and standard input.

    # m h dom mon dow user  command
    MAILTO=ops
    17 *  *   *   *   root  cd / && run-parts /etc/cron.hourly
    0  2  *   *   *   db    dump --day=$(date +\%F)%first line of stdin%second

One idea: reading and judging are two things. A line is taken apart here, its number kept; whether
its schedule can be meant is the dialect's to say, so all that is wrong is told at its line.

Invariants
- Every line that isn't blank, a comment or a variable is in `lines` or in `unread`.
- A variable holds for the lines below it alone, as in cron; `CRON_TZ` sets their zone.
- Names are fit for jobs and differ within a crontab; the same text gives the same names.
"""

import re
from collections.abc import Mapping
from typing import Final

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One entry. `schedule` is five fields or a macro, as written; `zone` is empty if none is said.

    `user` is empty in a crontab of a user; `stdin` is None where the command has no `%`.
    """

    number: int
    name: str
    schedule: str
    user: str
    command: str
    stdin: str | None
    zone: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that is no entry of a crontab."""

    number: int
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Crontab:
    """What was read; `system`: with a column of users, as /etc/crontab has."""

    system: bool
    lines: tuple[Line, ...]
    unread: tuple[Unread, ...]


_VARIABLE: Final = re.compile(
    r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z_][A-Za-z0-9_]*))\s*=\s*(.*?)\s*"""
)
_ENTRY: Final = re.compile(r"\s*(@\S+|\S+(?:\s+\S+){4})\s+(\S.*?)\s*")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_PERCENT: Final = re.compile(r"(?<!\\)%")
_LONGEST_NAME: Final = 120
_EVERY: Final = re.compile(r"\s*(@every\s+\S+)\s+(\S.*?)\s*", re.IGNORECASE)
"""`@every 90s` is ours, and has a second word."""
_PASSED_OVER: Final = frozenset({"sudo", "nice", "ionice", "env", "exec", "command"})
"""Words before the program that a line is about."""
_NO_WORK: Final = frozenset({"cd", "test", "true", ":"})
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_:.-]*")
_SHELLS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "python", "python3", "perl", "php", "ruby"}
)


def read(text: str, *, system: bool | None = None) -> Crontab:
    """Read a crontab. `system` says whether it has a column of users; None: as it looks.

    It looks so if each entry's first word after the schedule could be a user, and one is root.
    """
    entries: list[tuple[int, str, str, str, dict[str, str]]] = []
    unread: list[Unread] = []
    environment: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if variable := _VARIABLE.fullmatch(line):
            name = variable[1] or variable[2] or variable[3]
            environment = {**environment, name: _unquoted(variable[4])}
            continue
        entry = _EVERY.fullmatch(line) or _ENTRY.fullmatch(line)
        if entry is None:
            unread.append(Unread(number, *_not_an_entry(stripped)))
            continue
        schedule = " ".join(entry[1].split()).removeprefix("-")  # a dash: don't log it
        entries.append((number, schedule, entry[2], environment.get("CRON_TZ", ""), environment))
    if system is None:
        system = _looks_systemwide([command for _, _, command, _, _ in entries])
    lines: list[Line] = []
    taken: set[str] = set()
    for number, schedule, rest, zone, variables in entries:
        user, command = "", rest
        if system:
            user, *others = rest.split(maxsplit=1)
            if not others or not _USER.fullmatch(user):
                problem = f"{user!r} is no user followed by a command"
                unread.append(Unread(number, problem, "in a system's crontab: user command …"))
                continue
            command = others[0]
        command, stdin = _halves(command)
        name = _name(command, taken)
        lines.append(Line(number, name, schedule, user, command, stdin, zone, variables))
    return Crontab(system, tuple(lines), tuple(sorted(unread, key=lambda one: one.number)))


def _not_an_entry(line: str) -> tuple[str, str]:
    words = line.split()
    if line.startswith("@"):
        return f"{words[0]} has no command", f"{words[0]} command …"
    if len(words) == 5:
        return "has a schedule and no command", "minute hour day month weekday command …"
    count = f"{len(words)} word{'s' if len(words) > 1 else ''}"
    return f"{count}: neither an entry nor a variable", "minute hour day month weekday command …"


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _looks_systemwide(commands: list[str]) -> bool:
    firsts = [command.split() for command in commands]
    return (
        bool(firsts)
        and all(len(words) > 1 and _USER.fullmatch(words[0]) for words in firsts)
        and any(words[0] == "root" for words in firsts)
    )


def _halves(command: str) -> tuple[str, str | None]:
    r"""The command, and its standard input: a bare `%` ends a line, `\%` is a percent sign."""
    first, *rest = (part.replace("\\%", "%") for part in _PERCENT.split(command))
    return first.rstrip(), "\n".join(rest) + "\n" if rest else None


def _name(command: str, taken: set[str]) -> str:
    """A name for the job, from the program that the command is about."""
    stem = _slug(_program(command)) or "job"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name


def _program(command: str) -> str:
    """The words to call a command by: a script rather than its shell, never `cd`; and what it is
    to do, if that is a word: `console cart:expire`.
    """
    for part in re.split(r"&&|\|\||[;|]", command):
        words = [word.strip("()[]{}\"'") for word in part.split()]
        words = [word for word in words if word and "=" not in word and not word.startswith("-")]
        if not words or words[0].rsplit("/", 1)[-1] in _NO_WORK:
            continue
        for at, word in enumerate(words):
            last = word.rsplit("/", 1)[-1]
            if last in _PASSED_OVER or last in _SHELLS or last.isdigit():
                continue
            verb = words[at + 1] if len(words) > at + 1 else ""
            return f"{last} {verb}" if _WORD.fullmatch(verb) else last
    return command.split(maxsplit=1)[0].rsplit("/", 1)[-1] if command else ""


def _slug(word: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", word.lower())[:_LONGEST_NAME].strip("._-")
