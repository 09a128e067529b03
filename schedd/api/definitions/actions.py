"""Check the action of a job, as far as members can."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from schedd.api.errors import FieldViolation
from schedkit.net.endpoints import (
    endpoint_of,
    method_of,
    reserved,
    reserved_metadata,
    reserved_variable,
)
from schedkit.text.patterns import Pattern
from schedproto.v1 import job_pb2

_METHOD: Final = re.compile(r"[A-Za-z]{1,20}")
_VARIABLE: Final = re.compile(r"[^\s=]+")
_LAST_CODE: Final = 255
_LAST_UMASK: Final = 0o777
_LEAST_MEMORY: Final = 1 << 20
_LEAST_FILES: Final = 16
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}\$?", re.ASCII)
MOST_FILES: Final = 20
"""Files of environment variables that a job may name."""
_EXECUTOR: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~-]+")
_METADATA: Final = re.compile(r"[0-9A-Za-z_.-]+")
_TEXT: Final = re.compile(r"[ -~]*")


def violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    match job.WhichOneof("action"):
        case None:
            yield FieldViolation("action", "give one of shell, http, grpc, python, plugin")
        case "shell":
            yield from _shell(job.shell)
        case "http":
            yield from _http(job.http)
        case "grpc":
            yield from _grpc(job.grpc)
        case "python":
            if not job.python.handler:
                yield FieldViolation("python.handler", "is missing: name a registered handler")
            yield from _variables("python.env_from", job.python.env_from)
            yield from _limits("python.limits", job.python.limits)
        case "plugin":  # only the executor can check the content of its config
            name = job.plugin.executor
            if not _EXECUTOR.fullmatch(name):
                problem = f"{name[:80]!r} isn't a valid executor name: {_EXECUTOR.pattern}"
                yield FieldViolation("plugin.executor", problem)
            if job.plugin.config.WhichOneof("kind") == "raw":
                yield FieldViolation("plugin.config", "must be JSON, not bytes")


def _shell(shell: job_pb2.ShellAction) -> Iterator[FieldViolation]:
    if bool(shell.argv) == bool(shell.script):
        yield FieldViolation("shell", "give either argv or script")
    if shell.argv and not shell.argv[0]:
        yield FieldViolation("shell.argv", "the program's name is empty")
    if shell.interpreter and not shell.script:
        yield FieldViolation(
            "shell.interpreter", "requires script: give script, or leave interpreter out"
        )
    if shell.stdin_text and shell.stdin != job_pb2.ShellAction.STDIN_TEXT:
        yield FieldViolation("shell.stdin_text", "requires stdin: text")
    if shell.cwd and not shell.cwd.startswith("/"):
        yield FieldViolation(
            "shell.cwd", f"{shell.cwd[:140]!r} isn't an absolute path: begin it with /"
        )
    for code in shell.success_codes:
        if not 0 <= code <= _LAST_CODE:
            # Not even -15 (SIGTERM) is success: it doesn't show whether a person or the host's
            # out-of-memory killer ended the program. A program that should end well on SIGTERM
            # catches the signal and exits.
            signal = "; an end by a signal is always a failure" if code < 0 else ""
            problem = f"{code} isn't an exit code: must be 0 to {_LAST_CODE}{signal}"
            yield FieldViolation("shell.success_codes", problem)
    if shell.umask > _LAST_UMASK:
        problem = f"{shell.umask} isn't a umask: must be 0 to {_LAST_UMASK} (0o777)"
        yield FieldViolation("shell.umask", problem)
    if shell.user and not _USER.fullmatch(shell.user):
        yield FieldViolation("shell.user", f"{shell.user[:60]!r} isn't a valid user name")
    yield from _variables("shell.env_from", shell.env_from)
    yield from _limits("shell.limits", shell.limits)
    for name in shell.env:
        if not _VARIABLE.fullmatch(name) or not name.isprintable():
            yield FieldViolation("shell.env", f"{name!r} isn't a valid variable name")
        elif reserved_variable(name):
            problem = f"{name[:60]!r} is reserved: schedd sets all SCHEDD_… variables"
            yield FieldViolation("shell.env", problem)


def _variables(field: str, files: Sequence[str]) -> Iterator[FieldViolation]:
    if len(files) > MOST_FILES:
        yield FieldViolation(field, f"has {len(files)} files; at most {MOST_FILES} are allowed")
    for path in files[:MOST_FILES]:
        if not path.startswith("/"):
            yield FieldViolation(field, f"{path[:140]!r} isn't an absolute path: begin it with /")


def _limits(where: str, limits: job_pb2.ShellAction.Limits) -> Iterator[FieldViolation]:
    """0 means no limit. A limit that is too low for any program is likely a wrong unit."""
    for field, given, least, text in (
        ("memory_bytes", limits.memory_bytes, _LEAST_MEMORY, f"{_LEAST_MEMORY} (1 MiB)"),
        ("files", limits.files, _LEAST_FILES, f"{_LEAST_FILES}"),
    ):
        if 0 < given < least:
            problem = f"{given} is too low for any program: must be at least {text}"
            yield FieldViolation(f"{where}.{field}", problem)


def _http(http: job_pb2.HttpAction) -> Iterator[FieldViolation]:
    if not is_url(http.url):
        yield FieldViolation("http.url", f"{http.url!r} isn't an http or https URL")
    if http.method and not _METHOD.fullmatch(http.method):
        yield FieldViolation(
            "http.method", f"{http.method[:60]!r} isn't an HTTP method, such as GET or POST"
        )
    for name, value in http.headers.items():
        if not _HEADER.fullmatch(name):
            yield FieldViolation("http.headers", f"{name[:60]!r} isn't a valid header name")
        if any(sign in value for sign in "\r\n"):
            yield FieldViolation("http.headers", f"the value of {name!r} has a line break")
        if reserved(name, signed=bool(http.signing_key)):
            yield FieldViolation("http.headers", f"{name!r} is reserved: schedd sets it")
    if http.signing_key and not http.signing_key.startswith("/"):
        problem = f"{http.signing_key[:140]!r} isn't an absolute path: begin it with /"
        yield FieldViolation("http.signing_key", problem)
    yield from _twice("http.headers", http.headers)
    if http.HasField("json") and http.body:
        yield FieldViolation("http.body", "give either json or body")
    for status in http.success_statuses:
        if not 100 <= status <= 599:
            yield FieldViolation("http.success_statuses", f"{status} isn't an HTTP status")
    if http.success_pattern:
        try:
            Pattern(http.success_pattern)
        except ValueError as wrong:
            yield FieldViolation("http.success_pattern", f"isn't a valid RE2 pattern: {wrong}")


def _grpc(call: job_pb2.GrpcAction) -> Iterator[FieldViolation]:
    for field, read, text in (
        ("endpoint", endpoint_of, call.endpoint),
        ("method", method_of, call.method),
    ):
        try:
            if text or field == "endpoint":
                read(text)
        except ValueError as wrong:
            yield FieldViolation(f"grpc.{field}", str(wrong))
    for name, value in call.metadata.items():
        if not _METADATA.fullmatch(name):
            yield FieldViolation("grpc.metadata", f"{name[:60]!r} isn't a valid metadata name")
        if name.lower().endswith("-bin"):
            problem = f"{name[:60]!r} is binary: only text is supported"
            yield FieldViolation("grpc.metadata", problem)
        if not _TEXT.fullmatch(value):
            yield FieldViolation(
                "grpc.metadata", f"the value of {name[:60]!r} isn't printable ASCII"
            )
        if reserved_metadata(name):
            yield FieldViolation("grpc.metadata", f"{name[:60]!r} is reserved: schedd sets it")
    yield from _twice("grpc.metadata", call.metadata)


def _twice(field: str, names: Iterable[str]) -> Iterator[FieldViolation]:
    counted = Counter(name.lower() for name in names)
    for name in (name for name, count in counted.items() if count > 1):
        yield FieldViolation(field, f"{name[:60]!r} is given twice")


def is_url(text: str) -> bool:
    """Return whether this is an http or https URL with a valid host."""
    if not re.match(r"https?://[^/\s]+", text, re.IGNORECASE):
        return False
    try:
        parts = urlsplit(text)
        if parts.port == 0 or "\\" in parts.netloc:
            return False
        host = parts.hostname or ""
        if ":" in host:  # an IPv6 address, which `urlsplit` has read
            return True
        known = host.encode("idna")
        known.decode("idna")
        return _HOST.fullmatch(known) is not None
    except ValueError:
        return False
