"""In which order the hosts of a DSN are tried, and which are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pytest
from psycopg2 import OperationalError

from schedd.core.ids import Timeline
from schedd.store.connection.primary_selection import Servers

DSN = {"host": "a,b,c", "port": "5432,5432,5433", "dbname": "schedd"}


@dataclass
class Raw:
    """A connection of the driver's, to a server on this timeline; None: a standby."""

    host: str
    port: int
    timeline: int | None
    closed: bool = False

    @property
    def info(self) -> Raw:
        return self

    def cursor(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def execute(self, _: str) -> None:
        return

    def fetchone(self) -> tuple[int | None]:
        return (self.timeline,)

    def set_client_encoding(self, _: str) -> None:
        return

    def rollback(self) -> None:
        return

    def close(self) -> None:
        self.closed = True


@dataclass
class Hosts:
    """Servers by name; `away` doesn't answer, and libpq continues with the next."""

    on: dict[str, int | None]
    away: set[str] = field(default_factory=set)
    tried: list[str] = field(default_factory=list)
    made: list[Raw] = field(default_factory=list)

    def open_one(self, params: Mapping[str, Any]) -> Raw:
        pairs = zip(params["host"].split(","), params["port"].split(","), strict=True)
        for host, port in pairs:
            self.tried.append(host)
            if host not in self.away:
                self.made.append(Raw(host, int(port), self.on[host]))
                return self.made[-1]
        raise OperationalError("no server answers")

    def servers(self) -> Servers:
        return Servers(self.open_one, lambda _: nullcontext())


def test_the_first_host_of_the_dsn_is_tried_first_and_then_the_one_that_answered_last() -> None:
    """A host that is silent costs each connection the whole timeout."""
    hosts = Hosts({"a": 1, "b": 1, "c": 1}, away={"a"})
    servers = hosts.servers()
    servers.expect(Timeline(1))
    servers.connect(DSN)
    assert hosts.tried == ["a", "b"]
    hosts.tried.clear()
    servers.connect(DSN)
    assert hosts.tried == ["b"]
    hosts.away, hosts.tried = {"b"}, []
    servers.connect(DSN)
    assert hosts.tried == ["b", "a"]


def test_standbys_and_replaced_servers_are_passed_over_and_closed() -> None:
    hosts = Hosts({"a": None, "b": 1, "c": 2})
    servers = hosts.servers()
    servers.expect(Timeline(2))
    raw, timeline = servers.connect(DSN)
    assert (raw.host, timeline) == ("c", 2)
    assert [(each.host, each.closed) for each in hosts.made] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]


def test_the_server_with_the_highest_timeline_is_used_if_none_is_known() -> None:
    """A member that has just started would acknowledge calls on one that was replaced."""
    hosts = Hosts({"a": 1, "b": 3, "c": 2})
    servers = hosts.servers()
    raw, timeline = servers.connect(DSN)
    assert (raw.host, timeline) == ("b", 3)
    assert hosts.tried == ["a", "b", "c", "b"], "and the server that has it is asked first"
    assert [each.closed for each in hosts.made] == [True, True, True, False]
    servers.connect(DSN)
    assert hosts.tried[4:] == ["b"], "once"


def test_a_server_unavailable_at_the_start_costs_its_timeout_once() -> None:
    hosts = Hosts({"a": 1, "b": 1, "c": None}, away={"a"})
    raw, _ = hosts.servers().connect(DSN)
    assert (raw.host, hosts.tried) == ("b", ["a", "b", "c", "b"])
    hosts.away, hosts.tried = {"a", "b", "c"}, []
    with pytest.raises(OperationalError, match="no server answers"):
        hosts.servers().connect(DSN)
    assert hosts.tried == ["a", "b", "c"]


def test_an_error_without_a_usable_host_has_the_reason_of_each() -> None:
    hosts = Hosts({"a": None, "b": 1}, away={"c"})
    servers = hosts.servers()
    servers.expect(Timeline(2))
    with pytest.raises(OperationalError, match="no server answers"):
        servers.connect(DSN)
    with pytest.raises(OperationalError, match=r"^a:5432 is a standby.*; b:5432 is on timeline 1"):
        servers.connect({**DSN, "host": "a,b", "port": "5432"})
    assert all(raw.closed for raw in hosts.made)


def test_a_timeline_is_news_where_a_lower_one_was_known() -> None:
    servers = Hosts({"a": 1}).servers()
    assert not servers.expect(Timeline(1))
    assert not servers.expect(Timeline(1))
    assert servers.expect(Timeline(3))
    assert not servers.expect(Timeline(2))
