"""An invocation of schedctl: its global options, and the calls that it makes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from schedclient import ApiError, Client, ClusterUnavailable, Misconfigured, NotFound
from schedclient.transport.transport import split_endpoints
from schedctl import contexts
from schedctl.contexts import ClusterContext

T = TypeVar("T")

LOCAL: Final = "127.0.0.1:7420"
CONNECT_TIMEOUT: Final = 5.0
"""Seconds until the first connection must be established; `--timeout` overrides it."""
EXTRA_TIMEOUT: Final = 3.0
"""Timeout in seconds of a call that only adds information to an answer."""
TABLE_LIMIT: Final = 50
OUTPUTS: Final = ("table", "wide", "json", "jsonl", "yaml", "name")


@dataclass(slots=True)
class Session:
    """The global options, given before or after the subcommand; the later one wins."""

    given: dict[str, Any] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    """Options of the command line; the others come from environment variables."""
    command: str = ""
    """The command's full name, for the remedy `… --help`."""
    asked_job: str = ""
    """The job that the command names, for a suggestion if it isn't found."""

    @property
    def output(self) -> str:
        return str(self.given.get("output") or "table")

    @property
    def tabular(self) -> bool:
        return self.output in ("table", "wide")

    @property
    def headers(self) -> bool:
        return not self.given.get("no_headers")

    @property
    def colour(self) -> bool:
        """Return whether to color stdout, by `--color`, NO_COLOR and the terminal."""
        when = self.given.get("color") or "auto"
        if when != "auto":
            return bool(when == "always")
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    @property
    def relative(self) -> bool:
        """Return whether to show times as `3m ago`; the default on a terminal."""
        form = self.given.get("time_format")
        return sys.stdout.isatty() if form is None else bool(form == "relative")

    @property
    def namespace(self) -> str:
        context = self._context()
        return self.given.get("namespace") or (context and context.namespace) or "default"

    @property
    def timeout(self) -> float | None:
        seconds: float | None = self.given.get("timeout")
        return seconds

    def limit(self, asked: int | None) -> int | None:
        """Return the limit of a list: `--limit`, else 50 in a table and none in other formats."""
        return asked if asked is not None else TABLE_LIMIT if self.tabular else None

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run the calls of a command in a new event loop."""

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        try:
            return asyncio.run(connected())
        except ClusterUnavailable as error:
            if hint := self._override_hint():
                error.remedy = f"{hint}; {error.remedy}" if error.remedy else hint
            raise

    def collect(self, listing: Callable[[Client], AsyncIterator[T]]) -> list[T]:
        async def read(client: Client) -> list[T]:
            return [entry async for entry in listing(client)]

        return self.run(read)

    def client(self) -> Client:
        """Return a client, by `--endpoints`, `--context`, the current context, or this host."""
        context = self._context()
        endpoints = self._endpoints() or (context and context.endpoints) or LOCAL
        return Client(
            endpoints,
            tls=context.tls if context else None,
            token=_token(context),
            namespace=self.namespace,
            timeout=self.timeout or 20.0,
            connect_timeout=self.timeout or CONNECT_TIMEOUT,
        )

    def confirm(self, what: str, name: str, *, always: bool = False) -> None:
        """Ask for confirmation of a destructive change. In a protected context the name must be
        typed. With `always`, a terminal asks for yes.
        """
        if self.given.get("yes"):
            return
        context = self._context()
        protected = context is not None and context.protected
        terminal = bool(sys.stdin and sys.stdin.isatty())
        if context is not None and protected:
            if self.given.get("no_input") or not terminal:
                raise Misconfigured(
                    f'context "{context.name}" is protected: to {what} {name}, add --yes'
                )
            click.echo(f'context "{context.name}" is protected: {what} {name}', err=True)
            if click.prompt(f"type {name} to continue", err=True) != name:
                raise click.Abort
        elif always and terminal:
            if self.given.get("no_input"):
                raise Misconfigured(
                    f"to {what} {name}, a confirmation is needed, but --no-input forbids the"
                    " question: add --yes"
                )
            click.confirm(f"{what} {name}?", abort=True, err=True)

    def _context(self) -> ClusterContext | None:
        if name := self.given.get("context"):
            return contexts.named(str(name))
        if self._endpoints():
            return None  # the settings of a context belong to another cluster
        return contexts.current()

    def _override_hint(self) -> str:
        """Return a hint if SCHEDCTL_ENDPOINTS overrides the context's endpoints; else empty."""
        endpoints = self._endpoints()
        if not endpoints or "endpoints" in self.typed:
            return ""
        name = self.given.get("context")
        context = contexts.named(str(name)) if name else contexts.current()
        if context is None or split_endpoints(endpoints) == context.endpoints:
            return ""
        return (
            f'SCHEDCTL_ENDPOINTS overrides the endpoints of context "{context.name}": unset it'
            " to use the context"
        )

    def _endpoints(self) -> str | None:
        """Return the endpoints; `--context` on the command line overrides the variable."""
        if "context" in self.typed and "endpoints" not in self.typed:
            return None
        endpoints: str | None = self.given.get("endpoints")
        return endpoints


async def known(call: Awaitable[T]) -> T | None:
    """Return the answer to a call that only adds information; None if it fails."""
    try:
        return await call
    except ApiError:
        return None


async def existing(call: Awaitable[T]) -> T | None:
    """Return the answer to a call for one object; None if the object doesn't exist."""
    try:
        return await call
    except NotFound:
        return None


def _token(context: ClusterContext | None) -> str | None:
    if context is None or context.token_file is None:
        return None
    try:
        return context.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f'the access token of context "{context.name}" can\'t be read from'
            f" {context.token_file}: {getattr(error, 'strerror', error)}; make this file readable,"
            f" or name another file: schedctl config set {context.name} --at HOST:PORT --token-file"
            " FILE"
        ) from error
