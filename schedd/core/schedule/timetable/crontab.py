r"""A crontab, as cron reads it: lines with their schedule, user, command and standard input.

This module splits a line and keeps its number. The dialect validates the schedule, so each error is
reported with its line.

Invariants
- Lines end only at `\n`, and only spaces and tabs separate words, as in cron.
- Every line that isn't blank, a comment or a variable is in `lines` or in `unread`.
- A line that cron reads in a surprising way has a `CrontabWarning` that says what cron does.
- A variable holds only for the lines below it, as in cron; `CRON_TZ` sets their zone.
- Names are valid for jobs and differ within a crontab. The same text gives the same names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class CrontabLine:
    """`schedule`: five fields or a macro. `zone`: empty if none is given; `user`: in a user's
    crontab. `stdin` is None if the command has no `%`.
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
class CrontabWarning:
    """A line that cron can't read, or reads in a surprising way. `problem` says what cron does."""

    number: int
    rule: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Crontab:
    """A parsed crontab. `system`: with a column of users, like /etc/crontab."""

    system: bool
    lines: tuple[CrontabLine, ...]
    unread: tuple[CrontabWarning, ...]
    traps: tuple[CrontabWarning, ...] = ()


_VARIABLE: Final = re.compile(
    r"""[ \t]*(?:"([^"]+)"|'([^']+)'|([A-Za-z_][A-Za-z0-9_]*))[ \t]*=[ \t]*(.*?)[ \t]*""", re.DOTALL
)
_ENTRY: Final = re.compile(
    r"[ \t]*(@[^ \t]+|[^ \t]+(?:[ \t]+[^ \t]+){4})[ \t]+([^ \t].*?)[ \t]*", re.DOTALL
)
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_PERCENT: Final = re.compile(r"(?<!\\)%")
_LONGEST_NAME: Final = 120
_EVERY: Final = re.compile(
    r"[ \t]*(@every[ \t]+\S+)[ \t]+([^ \t].*?)[ \t]*", re.IGNORECASE | re.DOTALL
)
"""Macros of cron. `@every 90s` is ours, and has a second word."""
_PASSED_OVER: Final = frozenset({"sudo", "nice", "ionice", "env", "exec", "command"})
_NO_WORK: Final = frozenset({"cd", "test", "true", ":"})
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_:.-]*")
_SHELLS: Final = frozenset(
    ("sh", "bash", "dash", "zsh", "python", "python3", "perl", "php", "ruby")
)

_USERS: Final = frozenset({"root", "nobody", "daemon", "www-data", "postgres"})
"""Users of every system. None of them is the name of a program."""
_PROGRAMS: Final = _SHELLS.union(
    ("cd", "test", "[", "echo", "export", "set", "source", ".", "if", "for", "while"),
    ("exec", "eval", "true", "false", ":", "find", "rm", "cp", "mv", "cat", "ls"),
    ("python2", "node", "java", "curl", "wget", "sudo", "su", "nice", "ionice", "flock"),
    ("timeout", "env", "run-parts", "sleep", "date", "mkdir", "touch", "chown", "chmod"),
    ("tar", "gzip", "rsync", "logrotate", "certbot", "systemctl", "service", "docker"),
    ("make", "pg_dump", "mysqldump", "pg_dumpall"),
)
"""Words that begin a command. None of them is a common user."""
_HEADER: Final = re.compile(r"#.*\buser(?:-?name)?\b.*\bcommand\b", re.IGNORECASE)


def read_crontab(text: str, *, system: bool | None = None) -> Crontab:
    """Read a crontab. `system`: whether it has a column of users; None: decided from its text."""
    entries: list[tuple[int, str, str, str, dict[str, str]]] = []
    unread: list[CrontabWarning] = []
    environment: dict[str, str] = {}
    for number, line in _lines(text):
        if not line or line.startswith("#"):
            continue
        if variable := _variable(line):
            environment = {**environment, variable[0]: variable[1]}
            continue
        entry = _EVERY.fullmatch(line) or _ENTRY.fullmatch(line)
        if entry is None or _odd_space(entry[1]):
            unread.append(CrontabWarning(number, "unread", *_not_an_entry(line)))
            continue
        schedule = re.sub(r"[ \t]+", " ", entry[1]).removeprefix("-")  # a dash disables logging
        entries.append((number, schedule, entry[2], environment.get("CRON_TZ", ""), environment))
    commands = [rest for _, _, rest, _, _ in entries]
    traps = [*_traps_of_text(text), *_time_zones(text, [number for number, *_ in entries])]
    if system is None:
        system = _has_users(text, commands)
        if not system and (users := ", ".join(_perhaps_users(commands))):
            problem = f"may have a user column ({users}), but is read without one"
            hint = "give --user-column if this is a system crontab, else --no-user-column"
            traps.append(CrontabWarning(entries[0][0], "user-column", problem, hint))
    lines: list[CrontabLine] = []
    taken: set[str] = set()
    for number, schedule, rest, zone, variables in entries:
        user, command = "", rest
        if system:
            user, *others = re.split(r"[ \t]+", rest, maxsplit=1)
            if not others or not _is_user(user):
                problem = f"{user!r} isn't a user followed by a command: the user is missing"
                hint = "in a system crontab, write: schedule user command"
                unread.append(CrontabWarning(number, "unread", problem, hint))
                continue
            command = others[0]
        command, *rest_lines = (part.replace("\\%", "%") for part in _PERCENT.split(command))
        command, stdin = command.rstrip(), None
        if rest_lines:
            stdin = "\n".join(rest_lines) + "\n"
            problem = "% ends the command: cron passes the rest of the line to standard input"
            hint = "to write a percent sign, write \\%"
            traps.append(CrontabWarning(number, "percent", problem, hint))
        name = _name(command, taken)
        lines.append(CrontabLine(number, name, schedule, user, command, stdin, zone, variables))
    return Crontab(
        system,
        tuple(lines),
        tuple(sorted(unread, key=lambda one: one.number)),
        tuple(sorted(traps, key=lambda one: one.number)),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without surrounding spaces and tabs, and without a carriage return."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        yield number, line.removesuffix("\r").strip(" \t")


# -- How cron reads it --


def _traps_of_text(text: str) -> Iterator[CrontabWarning]:
    lines = text.split("\n")
    if text.startswith("\ufeff"):
        problem = "begins with a byte order mark, which cron reads as part of the first line"
        hint = "save the file as UTF-8 without a byte order mark"
        yield CrontabWarning(1, "byte-order-mark", problem, hint)
    carriage = [number for number, line in enumerate(lines, 1) if line.endswith("\r")]
    if carriage:
        count = f"{len(carriage)} line{'s' if len(carriage) > 1 else ''}"
        problem = f"{count} with CRLF: cron passes the \\r to commands and variables"
        hint = "save the file with LF: sed -i 's/\\r$//'"
        yield CrontabWarning(carriage[0], "crlf", problem, hint)
    if text and not text.endswith("\n") and lines[-1].strip(" \t"):
        problem = "the last line has no newline: cron ignores this line, or rejects the file"
        yield CrontabWarning(len(lines), "final-newline", problem, "add a newline at the end")


def _time_zones(text: str, entries: Sequence[int]) -> Iterator[CrontabWarning]:
    """Warn of `TZ=` above entries: commands see it, but only CRON_TZ changes schedules."""
    if not entries:
        return
    zone = ""
    for number, line in _lines(text):
        name, given = _variable(line) or ("", "")
        if name == "CRON_TZ":
            zone = given
        if name == "TZ" and number < entries[-1] and not zone:
            problem = f"TZ={given} changes only the time zone of commands, not that of schedules"
            hint = f"for schedules, write CRON_TZ={given} (cronie only), or give --tz"
            yield CrontabWarning(number, "tz", problem, hint)


def _not_an_entry(line: str) -> tuple[str, str]:
    words = re.split(r"[ \t]+", line)
    if odd := _odd_space(line):
        return f"has the space U+{ord(odd):04X}, which cron can't read", "use plain spaces or tabs"
    if line.startswith("@"):
        return f"{words[0]} has no command", f"write: {words[0]} command"
    if len(words) == 5:
        return "has a schedule but no command", "write: minute hour day month weekday command"
    count = f"{len(words)} word{'s' if len(words) > 1 else ''}"
    problem = f"{count}: the line is neither an entry nor a variable"
    return problem, "write: minute hour day month weekday command"


def _odd_space(text: str) -> str:
    """Return the first character that separates words for Python, but not for cron."""
    return next((letter for letter in text if letter.isspace() and letter not in " \t"), "")


def _variable(line: str) -> tuple[str, str] | None:
    """Return the name and the value that a line sets, without quotes; None: it sets none."""
    found = _VARIABLE.fullmatch(line)
    if found is None:
        return None
    value = found[4]
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return found[1] or found[2] or found[3], value[1:-1] if quoted else value


def _has_users(text: str, commands: Sequence[str]) -> bool:
    """Return whether a crontab has a column of users, by its header or by a well-known user."""
    firsts = [re.split(r"[ \t]+", command) for command in commands]
    known = any(len(words) > 1 and words[0] in _USERS for words in firsts)
    header = any(_HEADER.match(line) for _, line in _lines(text))
    return known or (header and any(len(words) > 1 and _is_user(words[0]) for words in firsts))


def _perhaps_users(commands: Sequence[str]) -> list[str]:
    """Return the first words, if each of them may be a user before a command."""
    users: dict[str, None] = {}
    for command in commands:
        first, *rest = re.split(r"[ \t]+", command)
        if not rest or not _is_user(first) or not (rest[0][0] in "/~" or rest[0] in _PROGRAMS):
            return []
        users[first] = None
    return [*users][:3]


def _is_user(word: str) -> bool:
    return _USER.fullmatch(word) is not None and word not in _PROGRAMS


def _name(command: str, taken: set[str]) -> str:
    """Return a name for the job, from the program in the command."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", _program(command).lower())
    stem = plain[:_LONGEST_NAME].strip("._-") or "job"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name


def _program(command: str) -> str:
    """Return the words that name a command, never its shell or `cd`: `console cart:expire`."""
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
