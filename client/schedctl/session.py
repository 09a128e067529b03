"""One invocation: what was asked for on the command line, and the calls it makes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, cast

import click

from schedclient import ApiError, Client, ClusterUnavailable, InvalidArgument, Misconfigured
from schedclient.calls.specs import when_message
from schedclient.transport.transport import split_endpoints
from schedctl import contexts
from schedctl.contexts import ClusterContext
from schedkit.clock import utcnow
from schedkit.text import duration

T = TypeVar("T")

LOCAL: Final = "127.0.0.1:7420"
INSTANT: Final = "INSTANT|+3s"
"""How help writes the form of `TimeType`."""
PATIENCE: Final = 5.0
"""Seconds in which some endpoint must take the first connection; a typed --timeout goes over it."""
TELL_WITHIN: Final = 3.0
"""Seconds that an answer waits for what is to be told beside it."""
TABLE_LIMIT: Final = 50
OUTPUTS: Final = ("table", "wide", "json", "jsonl", "yaml", "name")


@dataclass(slots=True)
class Session:
    """The global flags, as given before or after the subcommand; the later one holds."""

    given: dict[str, Any] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    """Those that were typed; the others are variables of the environment."""
    command: str = ""
    """The command's full name, for the hint at its own help."""
    asked_job: str = ""
    """Which job is meant: for a suggestion when there is none of that name."""

    @property
    def output(self) -> str:
        """One of OUTPUTS."""
        return str(self.given.get("output") or "table")

    @property
    def tabular(self) -> bool:
        """Whether people read it, rather than programs."""
        return self.output in ("table", "wide")

    @property
    def headers(self) -> bool:
        """Whether tables have a first line of names."""
        return not self.given.get("no_headers")

    @property
    def colour(self) -> bool:
        """Colours on stdout: `--color`, then NO_COLOR, then whether it is a terminal."""
        wish = self.given.get("color") or "auto"
        if wish != "auto":
            return bool(wish == "always")
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    @property
    def relative(self) -> bool:
        """Times as `3m ago`; by default on a terminal alone."""
        wish = self.given.get("time_format")
        return sys.stdout.isatty() if wish is None else bool(wish == "relative")

    @property
    def namespace(self) -> str:
        """Of all names."""
        context = self._context()
        return self.given.get("namespace") or (context and context.namespace) or "default"

    @property
    def timeout(self) -> float | None:
        """Seconds, where `--timeout` was given."""
        wish: float | None = self.given.get("timeout")
        return wish

    def limit(self, asked: int | None) -> int | None:
        """How many entries of a list: `--limit`, else 50 for tables and all for programs."""
        return asked if asked is not None else TABLE_LIMIT if self.tabular else None

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do the calls of a command in an event loop of their own."""

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        try:
            return asyncio.run(connected())
        except ClusterUnavailable as error:
            if over := self._over_the_context():
                error.remedy = f"{over}; {error.remedy}" if error.remedy else over
            raise

    def collect(self, listing: Callable[[Client], AsyncIterator[T]]) -> list[T]:
        """Read a list to its end."""

        async def read(client: Client) -> list[T]:
            return [entry async for entry in listing(client)]

        return self.run(read)

    def client(self) -> Client:
        """A client for the endpoints in use: `--endpoints`, `--context`, the current, this host."""
        context = self._context()
        endpoints = self._endpoints() or (context and context.endpoints) or LOCAL
        return Client(
            endpoints,
            tls=context.tls if context else None,
            token=_token(context),
            namespace=self.namespace,
            timeout=self.timeout or 20.0,
            connect_timeout=self.timeout or PATIENCE,
        )

    def confirm(self, what: str, name: str, *, always: bool = False) -> None:
        """Ask before something is destroyed: in a protected context for its name; with `always`, on
        a terminal, for yes.
        """
        if self.given.get("yes"):
            return
        context = self._context()
        protected = context is not None and context.protected
        terminal = bool(sys.stdin and sys.stdin.isatty())
        if context is not None and protected:
            if self.given.get("no_input") or not terminal:
                raise Misconfigured(
                    f'context "{context.name}" is protected: give --yes to {what} {name}'
                )
            click.echo(f'context "{context.name}" is protected: {what} {name}', err=True)
            if click.prompt("type its name to go on", err=True) != name:
                raise click.Abort
        elif always and terminal:
            if self.given.get("no_input"):
                raise Misconfigured(f"--no-input can't ask: give --yes to {what} {name}")
            click.confirm(f"{what} {name}?", abort=True, err=True)

    def _context(self) -> ClusterContext | None:
        if name := self.given.get("context"):
            return contexts.named(str(name))
        if self._endpoints():
            return None  # endpoints alone: nothing of another cluster's settings
        return contexts.current()

    def _over_the_context(self) -> str:
        """What a variable does to the context's endpoints; empty: nothing."""
        endpoints = self._endpoints()
        if not endpoints or "endpoints" in self.typed:
            return ""
        name = self.given.get("context")
        context = contexts.named(str(name)) if name else contexts.current()
        if context is None or split_endpoints(endpoints) == context.endpoints:
            return ""
        return (
            f'SCHEDCTL_ENDPOINTS goes over the endpoints of context "{context.name}": unset it,'
            " if that one is meant"
        )

    def _endpoints(self) -> str | None:
        """As given; a context that was typed goes over a variable."""
        if "context" in self.typed and "endpoints" not in self.typed:
            return None
        wish: str | None = self.given.get("endpoints")
        return wish


async def known(call: Awaitable[T]) -> T | None:
    """What is read beside a change to say more of it; None where it can't be read."""
    try:
        return await call
    except ApiError:
        return None


def _token(context: ClusterContext | None) -> str | None:
    if context is None or context.token_file is None:
        return None
    try:
        return context.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"token file can't be read: {error}") from error


class Guard(click.ParamType[str]):
    """A text that guards a change: an empty one (a variable that isn't set) would guard nothing."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, as it is."""
        if not value:
            self.fail("is empty; leave the flag out if none is meant", param, ctx)
        return str(value)


class TimeType(click.ParamType[datetime]):
    """An instant: RFC 3339, or from now as `+3s`."""

    name = "instant"
    also = "or from now, such as +3s"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The instant, aware and in UTC."""
        text = str(value)
        try:
            if text.startswith("+"):
                return utcnow() + timedelta(seconds=duration.parse(text[1:]).total_seconds())
            stamp = when_message(text, self.name)
        except InvalidArgument as error:
            self.fail(f"{error.violations[0].problem}, {self.also}", param, ctx)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)
        return cast("datetime", stamp.ToDatetime(tzinfo=UTC))


class LocalWhen(TimeType):
    """As `TimeType`, or a local time without an offset, which stays a text."""

    name = "local instant"
    also = "or a local time with --tz, or from now, such as +3s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The instant in UTC, or the text of a local time."""
        if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d)?", str(value), re.ASCII):
            return str(value)
        return super().convert(value, param, ctx)


class Past(TimeType):
    """An instant: RFC 3339, or so long ago as `10m`."""

    also = "or so long ago, such as 10m"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The instant, aware and in UTC."""
        text = str(value)
        if not text[:1].isdigit() or "T" in text.upper():
            return super().convert(value, param, ctx)
        try:
            return utcnow() - timedelta(seconds=duration.parse(text).total_seconds())
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType[float]):
    """A time as `30s` or `2m`; a bare number is seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds, more than none."""
        text = f"{value:g}s" if isinstance(value, float) else str(value)
        try:
            if text.replace(".", "", 1).isdigit():
                seconds = float(text)
            elif text.endswith("s") and text[:-1].replace(".", "", 1).isdigit():
                seconds = float(text[:-1])
            else:
                seconds = duration.parse(text).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail("must be more than 0", param, ctx)
        return seconds
