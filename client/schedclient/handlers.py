"""Functions that a worker runs: `@handler` registers one, `Context` describes its attempt.

    from schedclient import Context, handler

    @handler
    async def greet(payload: dict[str, str], ctx: Context) -> str:
        return f"hello {payload['name']}, this is attempt {ctx.attempt}"

docs/semantics/python-handlers.md has the rules. A name means one function: registering another
function under it raises an error at import.
"""

import inspect
import logging
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, overload

from schedkit.records import dataclass

Handler = Callable[[Any, "Context"], Any] | Callable[[Any, "Context"], Awaitable[Any]]
"""`fn(payload, ctx)`: the payload is the decoded JSON, bytes, or None."""

H = TypeVar("H", bound=Handler)

MOST_NOTE: Final = 200
"""Longest note of a progress report, in characters; the rest is cut off."""


class Mode(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    function: Handler
    mode: Mode


_registered: Final[dict[str, RegisteredHandler]] = {}

registered: Final[Mapping[str, RegisteredHandler]] = MappingProxyType(_registered)
"""Every handler of this process, by each of its names."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an attempt: `done` of `total`."""

    done: float
    total: float
    note: str

    @property
    def fraction(self) -> float:
        """The progress as a fraction from 0 to 1."""
        return self.done / self.total


_turn: Final = threading.RLock()
"""Held by a thread that sets a cancel, or begins to wait for one."""


class _Cancel(threading.Event):
    """An Event that creates its lock on the first `wait`. Few attempts wait, and the lock takes
    longer to create than the rest of a `Context`.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None
        """Follows `_is_set` once it exists."""

    def __repr__(self) -> str:
        return f"<cancel: {'set' if self._is_set else 'unset'}>"

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with _turn:
            self._is_set = True
            if self._event is not None:
                self._event.set()

    def clear(self) -> None:
        with _turn:
            self._is_set = False
            if self._event is not None:
                self._event.clear()

    def wait(self, timeout: float | None = None) -> bool:
        with _turn:
            if self._is_set:
                return True
            self._event = self._event or threading.Event()
        return self._event.wait(timeout)


class _RunLogger(logging.Logger):
    """A logger of one run, which ignores the configuration of `logging`."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__("run", logging.DEBUG)
        self._write = write

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the library's name
        return level >= self.level

    def handle(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        text = f"{at} {record.levelname:<7} {record.getMessage()}\n"
        if record.exc_info:
            text += _PLAIN.formatException(record.exc_info) + "\n"
        self._write(text)


_PLAIN: Final = logging.Formatter()


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)


@dataclass(frozen=True, slots=True)
class Context:
    """The attempt that a handler runs for."""

    namespace: str
    job: str
    """Name of the job; empty for work submitted without one."""
    run_id: str
    attempt: int
    """The number of the attempt, from 1."""
    scheduled_at: datetime
    """The scheduled time."""
    deadline: datetime
    """When the attempt's timeout ends it."""
    fencing_token: int
    """The fencing token. It is greater for each later assignment of this job's runs. Pass it to
    everything that this handler changes (`TableGuard`, `FileGuard`).
    """
    traceparent: str
    worker: str
    cancel: threading.Event = field(default_factory=_Cancel)
    """Set when the attempt should end: a cancel, its timeout, a shutdown. Threads must poll it.
    With `mode="process"`, a coroutine is also canceled, and a function ends by `SystemExit`.
    """
    on_heartbeat: Callable[[], object] = field(default=lambda: None, repr=False, compare=False)
    on_progress: Callable[[Progress], object] = field(
        default=lambda _: None, repr=False, compare=False
    )
    on_log: Callable[[str], object] = field(default=_to_stderr, repr=False, compare=False)

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines go to the run's log, from any thread."""
        return _RunLogger(self.on_log)

    def heartbeat(self) -> None:
        """Report that the attempt makes progress. A job with `heartbeat_timeout` must call this at
        least that often. Works from any thread.
        """
        self.on_heartbeat()

    def progress(self, done: float, total: float = 1.0, note: str = "") -> None:
        """Report progress: a fraction (`0.25`), or `done` of `total` (`30, 120`).

        Works from any thread, at any rate: only the newest value is sent. Counts as a heartbeat.
        Raises ValueError: `done` isn't from 0 to `total`.
        """
        if not (math.isfinite(total) and total > 0 and 0 <= done <= total):
            raise ValueError(
                f"progress: done is {done:g} and total is {total:g}, but done must be from 0 to"
                " total, and total above 0"
            )
        self.on_heartbeat()
        kept = note[:MOST_NOTE].encode(errors="replace").decode()  # no half surrogates
        self.on_progress(Progress(float(done), float(total), kept))

    @property
    def idempotency_key(self) -> str:
        """An idempotency key, the same for all attempts of this run."""
        return self.run_id


class DontRetry(Exception):
    """Fail the run for good, without another attempt."""


class RetryAfter(Exception):
    """Fail this attempt. The next one is due in `seconds`."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(message or f"try again in {seconds:g} s")
        self.seconds = seconds


@overload
def handler(given: H) -> H: ...
@overload
def handler(
    given: str = "", *, mode: Literal["thread", "process"] | None = None
) -> Callable[[H], H]: ...
def handler(
    given: H | str = "", *, mode: Literal["thread", "process"] | None = None
) -> H | Callable[[H], H]:
    """Register a function under its own name (`@handler`) or another (`@handler("name")`).

    Its import path is also a name. `mode="process"`: each call runs in its own process, which
    imports the function's module again. A crash of that process doesn't affect the worker. Raises
    ValueError: the name is taken by another function, or the function can't be called as
    `function(payload, ctx)`.
    """
    if isinstance(given, str):
        return lambda function: _register(function, given or _name(function), mode)
    return _register(given, _name(given), mode)


def is_async(function: Handler) -> bool:
    return inspect.iscoroutinefunction(function)


def _name(function: Handler) -> str:
    return str(getattr(function, "__name__", ""))


def _mode(function: Handler, name: str, wanted: str | None) -> Mode:
    if wanted is None:
        return Mode.LOOP if is_async(function) else Mode.THREAD
    if wanted not in (Mode.THREAD, Mode.PROCESS):
        raise ValueError(
            f"handler {name!r}: mode {wanted!r} is neither thread nor process: give one of these"
            " modes, or leave mode out"
        )
    if wanted == Mode.THREAD and is_async(function):
        raise ValueError(
            f"handler {name!r} is a coroutine and can't run in a thread: leave mode out, or give"
            " mode='process'"
        )
    return Mode(wanted)


def _register(function: H, name: str, mode: str | None) -> H:
    _need_two_arguments(function, name)
    path = f"{function.__module__}.{getattr(function, '__qualname__', name)}"
    for each in (name, path):
        other = _registered.get(each)
        if not each:
            raise ValueError("a handler's name must not be empty: give a name, or leave name out")
        if other is not None and _path(other.function) != path:
            raise ValueError(
                f"the handler name {each!r} is already registered for {_path(other.function)}:"
                " choose another name for one of the two handlers"
            )
        _registered[each] = RegisteredHandler(function, _mode(function, name, mode))
    return function


def _need_two_arguments(function: Handler, name: str) -> None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # the wrapper is called
    except ValueError:  # written in C, without a signature
        return
    try:
        signature.bind("payload", "ctx")
    except TypeError as error:
        raise ValueError(
            f"handler {name!r} must accept two arguments, as in {name}(payload, ctx): {error};"
            " correct its parameters"
        ) from None


def _path(function: Handler) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', '')}"
