"""Select the current primary among the hosts of the DSN.

    hosts a, b ──libpq: the first that answers──→ a: timeline 1, and 2 was seen ──→ closed
                └──without a───────────────────→ b: timeline 2 ──→ a connection; b is first now

A primary that was partitioned while another was promoted comes back unchanged: it accepts and
acknowledges writes, and all of them are lost. libpq checks only whether a server accepts writes, so
a pool over two hosts would use both. A process that has just started knows no timeline yet. It asks
all hosts, as the first one to answer may be the replaced one.

Invariants
- No connection leads to a standby, nor, after a timeline was seen, to a server of a lower one. The
  remaining hosts are tried instead.
- The first connection of a process leads to the highest timeline among the hosts that answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from psycopg2 import Error, OperationalError

from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.ids import Timeline
from schedd.store.connection import session

UNREADABLE: Final = Timeline(1)
"""The timeline of a server that doesn't report it (Aurora; EXECUTE revoked). A failover is then
detected by marks only."""

TIMELINE: Final = f"COALESCE(schedd_timeline(), {UNREADABLE})"
"""In statements on the schema (`migrations/versions/v0100_initial.py`)."""

LOOK: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
"""
"""The same for a new connection, which may lead to a database without the schema."""

_ROLE: Final = f"SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE {UNREADABLE} END"

_NOT_GIVEN: Final = ("55000", "42501", "42883", "0A000")
"""SQLSTATEs by which a server rejects `LOOK`. On Aurora: 55000."""

ACCEPTED_WITHIN: Final = 1.0
"""Seconds in which a host accepts a connection, unless it is unreachable."""

Host = tuple[str, str]

log = logging.getLogger(__name__)


class Servers:
    """The hosts of one DSN, and the highest timeline seen. Safe from any thread. `open_one`
    connects with parameters of libpq. `limited` limits the time of each check.
    """

    def __init__(
        self,
        open_one: Callable[[Mapping[str, Any]], Any],
        limited: Callable[[Any], AbstractContextManager[object]],
    ) -> None:
        self._open = open_one
        self._limited = limited
        self._lock = threading.Lock()
        """Guards `_least`: a timeline that was seen is never forgotten."""
        self._least = NO_TIMELINE
        self._said = False
        self._last: Host | None = None
        """The host of the newest connection. The next one tries it first, as a silent host would
        cost each connection its timeout."""

    def expect(self, timeline: Timeline) -> bool:
        """Record a timeline that was seen. Returns whether it is higher than the one before."""
        with self._lock:
            news = self._least not in (NO_TIMELINE, timeline) and timeline > self._least
            self._least = max(self._least, timeline)
        return news

    def connect(self, params: Mapping[str, Any]) -> tuple[Any, Timeline]:
        """Return a connection to the current primary, and its timeline. Raises OperationalError:
        no host is the current primary. Names the reason for each host.
        """
        hosts = _hosts(params)
        if self._least == NO_TIMELINE and len(hosts) > 1:
            self._ask_all(hosts, params)
        left, refused = sorted(hosts, key=lambda host: host != self._last), list[str]()
        while True:
            raw = self._open({**session.parameters(params), **_only(left)})
            timeline = self._timeline(raw)
            here = raw.info.host, str(raw.info.port)
            if timeline is not None and self._counts(timeline):
                self._last = here
                return raw, timeline
            raw.close()
            refused.append(self._why(here, timeline))
            left = [host for host in left if host != here]
            if not left or len(refused) == len(hosts):
                raise OperationalError("; ".join(refused))

    def _ask_all(self, hosts: list[Host], params: Mapping[str, Any]) -> None:
        """Find the host with the highest timeline. Raises OperationalError: no host answers."""
        away: list[Error] = []
        for host in hosts:
            try:
                raw = self._open({**session.parameters(params), **_only([host])})
                timeline = self._timeline(raw)
            except Error as error:
                away.append(error)
                continue
            raw.close()
            if timeline is not None and timeline > self._least:
                self.expect(timeline)
                self._last = host
        if len(away) == len(hosts):
            raise OperationalError("\n".join(str(error).strip() for error in away))

    def _counts(self, timeline: Timeline) -> bool:
        """Return whether no higher timeline was seen. The first one seen is the minimum."""
        with self._lock:
            self._least = self._least or timeline
            return timeline >= self._least

    def _timeline(self, raw: Any) -> Timeline | None:
        """Return the server's timeline, None for a standby. Leaves no transaction open."""
        try:
            with self._limited(raw), raw.cursor() as cursor:
                session.prepare(raw)
                try:
                    cursor.execute(LOOK)
                except Error as error:
                    if error.pgcode not in _NOT_GIVEN:
                        raise
                    raw.rollback()
                    self._say_once(str(error))
                    cursor.execute(_ROLE)
                [found] = cursor.fetchone()
                raw.rollback()
        except Error:
            raw.close()
            raise
        return None if found is None else Timeline(found)

    def _say_once(self, why: str) -> None:
        with self._lock:
            said, self._said = self._said, True
        if not said:
            reason = why.strip().partition("\n")[0]
            log.warning(
                "timeline unavailable reason=%r: a replaced primary that still takes writes isn't"
                " recognized; a failover is noticed by marks only (docs/databases.md)",
                reason,
            )

    def _why(self, here: Host, timeline: Timeline | None) -> str:
        who = ":".join(here)
        if timeline is None:
            return f"{who} is a standby, or is still in recovery"
        if self._said and timeline == UNREADABLE:
            return (
                f"{who} doesn't report its timeline, and {self._least} was seen: GRANT EXECUTE ON"
                " FUNCTION pg_current_wal_lsn(), pg_walfile_name(pg_lsn)"
            )
        return f"{who} is on timeline {timeline}, and {self._least} was seen: it was replaced"


async def accepting(params: Mapping[str, Any]) -> list[str]:
    """Return the hosts that accept a connection, as `HOST:PORT`. Sends nothing to them."""
    found = []
    for host, port in _hosts(params):
        try:
            async with asyncio.timeout(ACCEPTED_WITHIN):
                if host.startswith("/"):
                    _, writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
                else:
                    _, writer = await asyncio.open_connection(host or "localhost", int(port))
        except (OSError, ValueError):  # also a timeout; an invalid name
            continue
        writer.close()
        found.append(f"{host or 'localhost'}:{port}")
    return found


def _hosts(params: Mapping[str, Any]) -> list[Host]:
    """Return host and port of each server, in the DSN's order. A single port applies to all."""
    hosts = str(params.get("host") or "").split(",")
    ports = str(params.get("port") or "").split(",")
    if len(ports) != len(hosts):
        ports = [ports[0]] * len(hosts)
    return [(host, port or "5432") for host, port in zip(hosts, ports, strict=True)]


def _only(hosts: list[Host]) -> dict[str, str]:
    """Return the libpq parameters for these hosts only; none if the DSN names no host."""
    if not any(host for host, _ in hosts):
        return {}
    return {
        "host": ",".join(host for host, _ in hosts),
        "port": ",".join(port for _, port in hosts),
    }
