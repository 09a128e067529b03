"""What a job does, checked as far as it can be before any worker sees it."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from schedd.api.errors import Violation
from schedkit import headers
from schedkit.patterns import Pattern
from schedproto.v1 import job_pb2

_METHOD: Final = re.compile(r"[A-Za-z]{1,20}")
_VARIABLE: Final = re.compile(r"[^\s=]+")
_LAST_CODE: Final = 255
_LAST_UMASK: Final = 0o777
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}\$?", re.ASCII)
MOST_FILES: Final = 20
"""Of variables, that a shell job may name."""
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def violations(job: job_pb2.Job) -> Iterator[Violation]:
    """What no worker could run."""
    match job.WhichOneof("action"):
        case None:
            yield Violation("action", "give one of shell, http, python")
        case "shell":
            yield from _shell(job.shell)
        case "http":
            yield from _http(job.http)
        case "python" if not job.python.handler:
            yield Violation("python.handler", "is missing")


def _shell(shell: job_pb2.ShellAction) -> Iterator[Violation]:
    if bool(shell.argv) == bool(shell.script):
        yield Violation("shell", "give either argv or script")
    if shell.argv and not shell.argv[0]:
        yield Violation("shell.argv", "the program's name is empty")
    if shell.interpreter and not shell.script:
        yield Violation("shell.interpreter", "goes with script alone")
    if shell.stdin_text and shell.stdin != job_pb2.ShellAction.STDIN_TEXT:
        yield Violation("shell.stdin_text", "goes with stdin: text")
    if shell.cwd and not shell.cwd.startswith("/"):
        yield Violation("shell.cwd", f"{shell.cwd[:140]!r} isn't an absolute path")
    for code in shell.success_codes:
        if not 0 <= code <= _LAST_CODE:
            # Not even -15, Python's word for SIGTERM, which workers would understand: who killed a
            # program, a person or a host without memory, can't be told from it, so it never is
            # success. A program that ends well when it is asked to catches the signal and exits.
            signal = ", and an end by a signal is a failure" if code < 0 else ""
            problem = f"{code} isn't an exit code: 0 to {_LAST_CODE}{signal}"
            yield Violation("shell.success_codes", problem)
    if shell.umask > _LAST_UMASK:
        yield Violation("shell.umask", f"{shell.umask} isn't a umask: 0 to {_LAST_UMASK} (0o777)")
    if shell.user and not _USER.fullmatch(shell.user):
        yield Violation("shell.user", f"{shell.user[:60]!r} isn't the name of a user")
    if len(shell.env_from) > MOST_FILES:
        yield Violation(
            "shell.env_from", f"names {len(shell.env_from)} files, at most {MOST_FILES}"
        )
    for path in shell.env_from[:MOST_FILES]:
        if not path.startswith("/"):
            yield Violation("shell.env_from", f"{path[:140]!r} isn't an absolute path")
    for name in shell.env:
        if not _VARIABLE.fullmatch(name) or not name.isprintable():
            yield Violation("shell.env", f"{name!r} isn't the name of a variable")


def _http(http: job_pb2.HttpAction) -> Iterator[Violation]:
    if not _is_url(http.url):
        yield Violation("http.url", f"{http.url!r} isn't an http or https URL")
    if http.method and not _METHOD.fullmatch(http.method):
        yield Violation("http.method", f"{http.method[:60]!r} isn't an HTTP method")
    for name, value in http.headers.items():
        if not _HEADER.fullmatch(name):
            yield Violation("http.headers", f"{name[:60]!r} isn't the name of a header")
        if any(sign in value for sign in "\r\n"):
            yield Violation("http.headers", f"the value of {name!r} holds a line break")
        if headers.reserved(name, signed=bool(http.signing_key)):
            yield Violation("http.headers", f"{name!r} is set by schedd itself")
    if http.signing_key and not http.signing_key.startswith("/"):
        problem = f"{http.signing_key[:140]!r} isn't the absolute path of a file on the worker"
        yield Violation("http.signing_key", problem)
    names = Counter(name.lower() for name in http.headers)
    for name in (name for name, count in names.items() if count > 1):
        yield Violation("http.headers", f"{name[:60]!r} is given twice")
    if http.HasField("json") and http.body:
        yield Violation("http.body", "give either json or body")
    for status in http.success_statuses:
        if not 100 <= status <= 599:
            yield Violation("http.success_statuses", f"{status} isn't an HTTP status")
    if http.success_pattern:
        try:
            Pattern(http.success_pattern)
        except ValueError as wrong:
            yield Violation("http.success_pattern", f"can't be read as RE2 syntax: {wrong}")


def _is_url(text: str) -> bool:
    if not re.match(r"https?://[^/\s]+", text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
