"""Functions that a worker runs: `@handler` registers one, `Context` tells it about its attempt.

    from schedclient import Context, handler

    @handler
    async def greet(payload: dict[str, str], ctx: Context) -> str:
        return f"hello {payload['name']}, this is attempt {ctx.attempt}"

A worker imports the modules its configuration lists (`handlers = ["shop.tasks"]`); a job then names
`greet`, or `shop.tasks.greet`. An `async def` runs on the worker's event loop and must not block
it; a plain function runs in a thread. What it returns is stored as JSON (bytes as they are), at
most 64 KiB.

Invariants
- A name means one function; registering another under it is an error, at import.
- Raising `DontRetry` ends the run for good, `RetryAfter` sets the wait before the next attempt;
  any other exception fails the attempt, and the job's retry policy decides.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

Handler = Callable[[Any, "Context"], Any] | Callable[[Any, "Context"], Awaitable[Any]]
"""`fn(payload, ctx)`: the payload is the decoded JSON, bytes, or None when there is none."""

H = TypeVar("H", bound=Handler)

_registered: Final[dict[str, Handler]] = {}

registered: Final[Mapping[str, Handler]] = MappingProxyType(_registered)
"""Every handler of this process, by each of its names."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler knows about the attempt it is."""

    namespace: str
    job: str
    """Name of the job; empty for work submitted without one."""
    run_id: str
    attempt: int
    """Counts from 1."""
    scheduled_at: datetime
    """The nominal instant."""
    deadline: datetime
    """When the attempt's timeout ends it."""
    fencing_token: int
    """Greater for each later assignment of this job's runs. Give it to what this handler changes
    (`TableGuard`, `FileGuard`).
    """
    traceparent: str
    worker: str
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt should end: a cancel, its timeout, a shutdown. Threads must look."""
    on_heartbeat: Callable[[], object] = field(default=lambda: None, repr=False, compare=False)

    def heartbeat(self) -> None:
        """It goes on. To be said at least once in each `heartbeat_timeout` of the job, if it has
        one; from any thread.
        """
        self.on_heartbeat()

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of this run."""
        return self.run_id


class DontRetry(Exception):
    """Another attempt is of no use: the run fails for good."""


class RetryAfter(Exception):
    """This attempt fails; the next is due in `seconds`."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(message or f"try again in {seconds:g} s")
        self.seconds = seconds


@overload
def handler(given: H) -> H: ...
@overload
def handler(given: str) -> Callable[[H], H]: ...
def handler(given: H | str) -> H | Callable[[H], H]:
    """Register a function under its own name (`@handler`) or another (`@handler("name")`).

    Its import path names it too.

    Raises:
        ValueError: the name is taken by another function, or it can't be called as
            `function(payload, ctx)`.
    """
    if isinstance(given, str):
        return lambda function: _register(function, given)
    return _register(given, getattr(given, "__name__", ""))


def is_async(function: Handler) -> bool:
    """Whether it runs on the event loop; otherwise in a thread."""
    return inspect.iscoroutinefunction(function)


def _register(function: H, name: str) -> H:
    _need_two_arguments(function, name)
    path = f"{function.__module__}.{getattr(function, '__qualname__', name)}"
    for each in (name, path):
        other = _registered.get(each)
        if not each or (other is not None and _path(other) != path):
            raise ValueError(f"handler name {each!r} is taken by {other!r}")
        _registered[each] = function
    return function


def _need_two_arguments(function: Handler, name: str) -> None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # the wrapper is called
    except ValueError:  # one written in C tells nothing
        return
    try:
        signature.bind("payload", "ctx")
    except TypeError as error:
        raise ValueError(
            f"handler {name!r} is called as {name}(payload, ctx), which it doesn't take: {error}"
        ) from None


def _path(function: Handler) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', '')}"
