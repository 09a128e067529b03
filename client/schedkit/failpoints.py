"""Failpoints: named places in the daemons where a test makes the process die, stop, wait or fail.

    AFTER_COMMIT = failpoints.awaited("fire.after_commit")     at import; on the event loop
    IN_TRANSACTION = failpoints.blocking("fire.in_transaction")        at import; in a thread
    …
    await AFTER_COMMIT()                                       where it acts

    SCHEDD_FAILPOINTS="fire.after_commit=kill,skip=3; accept.before_commit=pause:5"

    point = NAME=ACTION{,OPTION}
    ACTION  kill            SIGKILL to this process
            stop            SIGSTOP to this process: all threads, until SIGCONT
            pause:SECONDS   wait so long; on the event loop, other tasks continue
            pause:FILE      wait until the file (an absolute path) appears
            error           fail as if a dependency were unavailable
            unknown         fail as a write without an answer does
    OPTION  skip=N          don't act for the first N passages
            count=N         act N times at most
            ticket=FILE     act only if this file exists, and remove it: one act per file, across
                            all processes and restarts. Its absence shows that the act happened.

Invariants
- Without the variable a place is bound to a function that does nothing; no other code runs.
- The start fails (`check`) if a name has no place, is given twice, or a point can't be read or
  can never act. A test that activates nothing must not pass.
- A daemon with active points logs them at the start, and again each time one acts.
"""

import asyncio
import logging
import math
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from schedkit.errors import Misconfigured, OutcomeUnknown, Unavailable

log = logging.getLogger(__name__)

VARIABLE: Final = "SCHEDD_FAILPOINTS"

Place: TypeAlias = Callable[[], None]
AwaitedPlace: TypeAlias = Callable[[], Awaitable[None]]
Fails: TypeAlias = type[Exception]

_ACTIONS: Final = ("kill", "stop", "pause", "error", "unknown")
_LOOK: Final = 0.02


@dataclass(slots=True)
class Point:
    """An active failpoint, as the variable describes it."""

    name: str
    action: str
    argument: str = ""
    skip: int = 0
    count: int | None = None
    ticket: Path | None = None
    fails: Fails | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def block(self) -> None:
        """Pass here, in a thread that may wait."""
        if self._acts():
            for seconds in self._act():
                # Block on purpose, with a lock: `time.sleep` may fail if the clock is moved.
                threading.Event().wait(seconds)

    async def wait(self) -> None:
        """Pass here, on the event loop."""
        if self._acts():
            for seconds in self._act():
                await asyncio.sleep(seconds)

    def _acts(self) -> bool:
        with self._lock:
            if self.skip > 0:
                self.skip -= 1
                return False
            if self.count == 0 or not self._take_ticket():
                return False
            if self.count is not None:
                self.count -= 1
        log.warning("failpoint %s: %s %s", self.name, self.action, self.argument)
        return True

    def _take_ticket(self) -> bool:
        if self.ticket is None:
            return True
        try:
            self.ticket.unlink()
        except FileNotFoundError:
            return False
        return True

    def _act(self) -> Iterable[float]:
        """Act. Yield the seconds to wait, repeatedly."""
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                # To this thread: after `os.kill` it could run on until another has the signal.
                signal.raise_signal(signal.SIGSTOP)
            case "error" | "unknown":
                raise self.failure()(f"failpoint {self.name}")
            case "pause" if self.argument.startswith("/"):
                while not Path(self.argument).exists():
                    yield _LOOK
            case "pause":
                yield float(self.argument)

    def failure(self) -> Fails:
        """Return the class of exception to raise. Raises Misconfigured: the place can't fail like
        that.
        """
        if self.fails is not None and self.action == "error":
            return self.fails
        if self.fails is Unavailable:
            return OutcomeUnknown
        raise Misconfigured(
            f"the failpoint {self.name} (a place where tests inject failures) doesn't support"
            f" the action {self.action}: use another action"
        )


class _Done:
    """An awaitable that completes at once."""

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        return iter(())  # type: ignore[return-value]  # an empty iterator awaits nothing


_DONE: Final = _Done()


def _nothing() -> None:
    """Do nothing: the place isn't active."""


def _done() -> Awaitable[None]:
    return _DONE


class Failpoints:
    """The failpoints of one process, and the places that its modules have declared."""

    def __init__(self, described: str) -> None:
        self._wrong: str = ""
        self._armed: dict[str, Point] = {}
        self._places: set[str] = set()
        try:
            self._armed = {point.name: point for point in parse(described)}
        except Misconfigured as wrong:  # `check` reports it: an import must not fail
            self._wrong = str(wrong)

    @property
    def places(self) -> frozenset[str]:
        """Return the places of the modules that were imported so far."""
        return frozenset(self._places)

    def blocking(self, name: str, fails: Fails | None = Unavailable) -> Place:
        """Declare a place in code that may block. `fails`: the exception of `error` there; None:
        the surrounding code can't handle a failure, so none is permitted.
        """
        point = self._declare(name, fails)
        return _nothing if point is None else point.block

    def awaited(self, name: str, fails: Fails | None = Unavailable) -> AwaitedPlace:
        """Declare a place on the event loop."""
        point = self._declare(name, fails)
        return _done if point is None else point.wait

    def check(self, ours: Callable[[str], bool]) -> None:
        """Check the variable when all modules of a daemon are imported. `ours`: whether the daemon
        may have a place of this name. Raises Misconfigured: the variable can't be read, or names an
        unknown place.
        """
        if self._wrong:
            raise Misconfigured(f"{VARIABLE}: {self._wrong}")
        unknown = sorted(name for name in self._armed if ours(name) and name not in self._places)
        if unknown:
            known = ", ".join(sorted(name for name in self._places if ours(name)))
            raise Misconfigured(
                f"{VARIABLE} names an unknown failpoint, {', '.join(unknown)}: use one of {known}"
            )
        for name, point in sorted(self._armed.items()):
            if ours(name):
                if point.action in {"error", "unknown"}:
                    point.failure()
                log.warning("failpoint %s is armed: this process is being tested", name)

    def _declare(self, name: str, fails: Fails | None) -> Point | None:
        self._places.add(name)
        point = self._armed.get(name)
        if point is not None:
            point.fails = fails
        return point


def parse(described: str) -> list[Point]:
    """Parse the variable. Raises Misconfigured: a point isn't valid, or a place is given twice."""
    points = [_point(each.strip()) for each in described.split(";") if each.strip()]
    for name, times in Counter(point.name for point in points).items():
        if times > 1:
            raise Misconfigured(f"the failpoint {name} is given twice: give it once")
    return points


_POINT: Final = re.compile(r"([a-z_.]+)\s*=\s*([a-z]+)(?::([^,]*))?((?:\s*,[^,]*)*)")


def _point(described: str) -> Point:
    found = _POINT.fullmatch(described)
    if found is None or found[2] not in _ACTIONS:
        raise Misconfigured(
            f"{described!r} isn't a valid failpoint: write NAME=ACTION, with one of the"
            f" actions {', '.join(_ACTIONS)}"
        )
    name, action, argument, rest = found[1], found[2], (found[3] or "").strip(), found[4]
    if (action == "pause") != bool(argument):
        raise Misconfigured(
            f"{described!r}: only the action pause takes an argument, and needs seconds or a file"
        )
    options = dict(_option(each, described) for each in rest.split(",") if each.strip())
    try:
        finite = action != "pause" or argument.startswith("/") or 0 <= float(argument) < math.inf
        if not finite:
            raise ValueError(
                f"a pause of {argument} seconds isn't valid: give a finite number from 0"
            )
        return Point(
            name,
            action,
            argument,
            _at_least(0, options, "skip") or 0,
            _at_least(1, options, "count"),
            Path(options["ticket"]) if "ticket" in options else None,
        )
    except ValueError as wrong:
        raise Misconfigured(f"{described!r}: {wrong}") from None


def _option(text: str, described: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in text.partition("="))
    if key not in {"skip", "count", "ticket"} or not value:
        raise Misconfigured(
            f"{described!r} isn't a valid failpoint: the option {text.strip()!r} isn't skip=,"
            " count= or ticket="
        )
    return key, value


def _at_least(least: int, options: Mapping[str, str], key: str) -> int | None:
    if key not in options:
        return None
    number = int(options[key])
    if number < least:
        raise ValueError(f"the failpoint option {key}={number} isn't valid: give {least} or more")
    return number


_OURS: Final = Failpoints(os.environ.get(VARIABLE, ""))

blocking = _OURS.blocking
awaited = _OURS.awaited
check = _OURS.check
