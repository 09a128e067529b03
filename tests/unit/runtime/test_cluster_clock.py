"""Cluster time from probes, and which servers count as the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.ids import Timeline
from schedd.core.runs.records import DatabaseProbe
from schedd.runtime.cluster_clock import DatabaseClock
from schedkit.errors import Unavailable

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Server:
    """A database whose clock runs with ours, and that may be replaced."""

    def __init__(self) -> None:
        self.at = 100.0
        self.timeline = Timeline(1)
        self.in_recovery = False
        self.away = False
        self.left = 0
        """How often the connections were closed."""
        self.expected: list[int] = []
        """The timelines that the store received."""
        self.clock = DatabaseClock(
            self.probe,
            lambda: self.at,
            reconnect=self.leave,
            expects=self.expected.append,
        )

    def leave(self) -> None:
        self.left += 1

    async def probe(self) -> DatabaseProbe:
        self.at += 0.001
        if self.away:
            raise Unavailable("away")
        now = START + timedelta(seconds=self.at)
        self.at += 0.001
        return DatabaseProbe(now, self.timeline, self.in_recovery)


@pytest.fixture
def server() -> Server:
    return Server()


async def test_cluster_time_is_unknown_until_the_database_is_reached(server: Server) -> None:
    assert not server.clock.known
    with pytest.raises(Unavailable):
        server.clock.now()


async def test_cluster_time_is_that_of_the_database_and_not_of_the_host(server: Server) -> None:
    await server.clock.step()
    server.at += 10
    expected = START + timedelta(seconds=server.at)
    assert timedelta(0) <= expected - server.clock.now() < timedelta(milliseconds=2)


async def test_cluster_time_advances_during_a_database_outage(server: Server) -> None:
    await server.clock.step()
    server.away = True
    before = server.clock.now()
    server.at += 5
    with pytest.raises(Unavailable):
        await server.clock.step()
    assert server.clock.now() - before > timedelta(seconds=5)
    assert server.clock.away_for() == pytest.approx(5, abs=0.01)


async def test_a_standby_is_rejected_and_disconnected(server: Server) -> None:
    """P2.6: what it takes would be lost, and its clock isn't the cluster's."""
    server.in_recovery = True
    with pytest.raises(Unavailable):
        await server.clock.step()
    assert not server.clock.known
    assert server.left == 1


async def test_a_replaced_server_is_rejected_and_disconnected(server: Server) -> None:
    """P2.6: by its own address a name may lead to another server now."""
    server.timeline = Timeline(3)
    await server.clock.step()
    server.timeline = Timeline(2)
    with pytest.raises(Unavailable, match="replaced"):
        await server.clock.step()
    assert server.clock.timeline == 3
    assert server.left == 1


async def test_a_timeline_that_others_have_seen_counts_too(server: Server) -> None:
    server.clock.expect(Timeline(2))
    with pytest.raises(Unavailable, match="replaced"):
        await server.clock.step()


async def test_a_promotion_is_detected(server: Server) -> None:
    """P2.6: by the store too, whose connections may still lead to the one that was replaced."""
    await server.clock.step()
    await server.clock.step()
    server.timeline = Timeline(2)
    await server.clock.step()
    assert server.clock.timeline == 2
    server.clock.expect(Timeline(4))
    server.clock.expect(Timeline(3))
    assert server.expected == [1, 2, 4]


async def test_a_wrong_wall_clock_is_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.clock.step()
    await server.clock.step()
    warnings = [record for record in caplog.records if "wall clock" in record.getMessage()]
    assert len(warnings) == 1


async def test_the_shown_time_never_goes_back(server: Server) -> None:
    await server.clock.step()
    server.at += 1
    shown = server.clock.now()
    server.at -= 1e-6  # as the last bit of a sum may
    assert server.clock.now() == shown
    server.at += 1
    assert server.clock.now() > shown
