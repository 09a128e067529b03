"""Which server a connection leads to: of the hosts that the DSN names, the one that counts.

    hosts a, b ──libpq: the first that answers──→ a: timeline 1, and 2 was seen ──→ closed
                └──without a───────────────────→ b: timeline 2 ──→ a connection; b is first now

A primary that was cut off while another took its place comes back as it was: it takes writes, and
may well acknowledge them, and all of them are lost. libpq asks no more than whether it takes them,
so a pool over two hosts would talk to both. And who has just started, and knows no timeline yet,
asks them all: whom it would meet first may be the one that was replaced.

Invariants
- No connection is handed out to a standby, nor, once a timeline was seen, to a server of a lower
  one; where other hosts are left, those are tried.
- The first connection of all leads to the highest timeline of those that answer.
"""

from __future__ import annotations

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
"""Stands for the timeline where the server doesn't give it (Aurora; EXECUTE revoked). A failover is
then noticed by marks alone."""

TIMELINE: Final = f"COALESCE(schedd_timeline(), {UNREADABLE})"
"""In statements on the schema (`migrations/versions/v0025_timeline_function.py`)."""

LOOK: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
"""
"""The same for a new connection, which may lead to a database without the schema."""

_ROLE: Final = f"SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE {UNREADABLE} END"

_NOT_GIVEN: Final = ("55000", "42501", "42883", "0A000")
"""SQLSTATEs by which a server refuses `LOOK`. On Aurora: 55000."""

Host = tuple[str, str]

log = logging.getLogger(__name__)


class Servers:
    """The hosts of one DSN, and what was seen of their timelines. Safe from any thread.

    `open_one` connects by parameters of libpq; `patience` is around each look at what it opened.
    """

    def __init__(
        self,
        open_one: Callable[[Mapping[str, Any]], Any],
        patience: Callable[[Any], AbstractContextManager[object]],
    ) -> None:
        self._open = open_one
        self._patience = patience
        self._lock = threading.Lock()
        """Guards `_least`: a timeline that was seen is never forgotten."""
        self._least = NO_TIMELINE
        self._said = False
        self._last: Host | None = None
        """Where the newest connection leads: the next one tries it first, for a host that is silent
        costs each connection its timeout."""

    def expect(self, timeline: Timeline) -> bool:
        """Somebody has seen this timeline; whether servers have been replaced since the last."""
        with self._lock:
            news = self._least not in (NO_TIMELINE, timeline) and timeline > self._least
            self._least = max(self._least, timeline)
        return news

    def connect(self, params: Mapping[str, Any]) -> tuple[Any, Timeline]:
        """A connection to one that counts, and its timeline.

        Raises:
            OperationalError: none was to be had; says what was wrong with each that answered.
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
        """Hear of the highest timeline there is, and who has it.

        Raises:
            OperationalError: nobody answers.
        """
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
        """Whether no higher one was seen; the first of all is what the others are judged by."""
        with self._lock:
            self._least = self._least or timeline
            return timeline >= self._least

    def _timeline(self, raw: Any) -> Timeline | None:
        """None for a standby. Leaves no transaction open."""
        try:
            with self._patience(raw), raw.cursor() as cursor:
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
            return f"{who} is a standby, or still recovers"
        if self._said and timeline == UNREADABLE:
            return (
                f"{who} doesn't give its timeline, and {self._least} was seen: GRANT EXECUTE ON"
                " FUNCTION pg_current_wal_lsn(), pg_walfile_name(pg_lsn)"
            )
        return f"{who} is on timeline {timeline}, and {self._least} was seen: it was replaced"


def _hosts(params: Mapping[str, Any]) -> list[Host]:
    """Host and port of each server, in the DSN's order; one port may be meant for all."""
    hosts = str(params.get("host") or "").split(",")
    ports = str(params.get("port") or "").split(",")
    if len(ports) != len(hosts):
        ports = [ports[0]] * len(hosts)
    return [(host, port or "5432") for host, port in zip(hosts, ports, strict=True)]


def _only(hosts: list[Host]) -> dict[str, str]:
    """What makes libpq try these alone; nothing where the DSN leaves its host to libpq."""
    if not any(host for host, _ in hosts):
        return {}
    return {
        "host": ",".join(host for host, _ in hosts),
        "port": ",".join(port for _, port in hosts),
    }
