"""Rounds: ratios of one round, who is left out, who came to no end, and what is made of it all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.peers.environments import Environment, Tool
from bench.peers.errors import Failed, LeftOut
from bench.peers.peer import Drained
from bench.peers.racing import Race
from bench.peers.roster import OURSELVES, PEERS
from bench.peers.starts import Verdict
from bench.peers.stores import durable_redis
from bench.peers.summary import ratio, ratios, spread
from bench.peers.watching import Watched


def drained(jobs: int, seconds: float | None, *, lost: int = 0, twice: int = 0) -> Drained:
    """A drain that took so long; None is one that came to no end."""
    verdict = Verdict(jobs - lost, lost, twice, 0, first=100.0)
    watched = (
        Watched(None, jobs - lost, "not at its end within 9 s")
        if seconds is None
        else Watched(100.0 + seconds, jobs)
    )
    return Drained(jobs, verdict, watched, 1.0, {}, {})


@dataclass
class Runner:
    """A contestant with a scripted outcome for each round."""

    name: str
    does: list[Drained | Exception] = field(default_factory=list)
    share: float = 1.0
    processes: int = 1
    settings: Any = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def drain(self, jobs: int, _cache: Path, _deadline: float) -> Drained:
        """The next of them."""
        self.asked.append(jobs)
        done = self.does.pop(0)
        if isinstance(done, Exception):
            raise done
        return done


@pytest.fixture
def race(tmp_path: Path) -> Race:
    """Of a hundred jobs."""
    return Race(100, tmp_path, 9.0)


def schedd(*does: Drained | Exception) -> Runner:
    """Schedd's place in the race."""
    return Runner(OURSELVES.name, list(does))


def test_a_peer_is_compared_with_schedd_of_the_same_round(race: Race) -> None:
    us = schedd(drained(100, 1.0), drained(100, 4.0))
    peer = Runner("peer", [drained(100, 2.0), drained(100, 2.0)])

    lines = [race.run(number, one) for number in (1, 2) for one in (us, peer)]

    assert [line and line["schedd_over_peer"] for line in lines] == [1.0, 2.0, 1.0, 0.5]
    assert race.summary(peer)["schedd_over_peer"] == {"median": 1.25, "min": 0.5, "max": 2.0}
    assert race.summary(peer)["rate"] == {"median": 50, "min": 50, "max": 50}


def test_a_round_that_one_of_both_didnt_end_is_compared_with_nothing(race: Race) -> None:
    us = schedd(drained(100, None), drained(100, 1.0))
    peer = Runner("peer", [drained(100, 2.0), drained(100, None)])
    lines = [race.run(number, one) for number in (1, 2) for one in (us, peer)]

    assert [line and line["schedd_over_peer"] for line in lines] == [None, None, 1.0, None]
    assert race.summary(peer)["schedd_over_peer"] is None
    assert race.summary(peer)["troubles"] == ["not at its end within 9 s"]


def test_a_summary_counts_losses_and_duplicates_of_all_rounds(race: Race) -> None:
    peer = Runner("peer", [drained(100, 1.0, twice=2), drained(100, None, lost=3)])
    race.run(1, peer)
    race.run(2, peer)

    summary = race.summary(peer)

    assert (summary["lost"], summary["duplicates"], summary["incomplete"]) == (3, 2, 3)


def test_a_contestant_that_cant_run_here_is_left_out_with_the_reason(race: Race) -> None:
    peer = Runner("peer", [LeftOut("no redis-server")])

    first, second = race.run(1, peer), race.run(2, peer)

    assert first is not None
    assert first["left_out"] == "no redis-server"
    assert second is None
    assert race.summary(peer) == {"summary": "peer", "left_out": "no redis-server"}


def test_a_peer_that_fails_once_may_run_in_the_next_round(race: Race) -> None:
    peer = Runner("peer", [Failed("pgq: exit 1"), drained(100, 1.0)])
    race.run(1, peer)
    race.run(2, peer)

    summary = race.summary(peer)

    assert (summary["rounds"], summary["troubles"]) == (1, ["pgq: exit 1"])


def test_a_slow_peer_is_given_its_share_of_the_jobs(race: Race) -> None:
    slow = Runner("slow", [drained(10, 1.0)], share=0.1)
    race.run(1, slow)

    assert slow.asked == [10]


@pytest.mark.parametrize(
    ("done", "clean"),
    [
        (lambda: drained(100, 1.0), True),
        (lambda: drained(100, 1.0, twice=1), False),
        (lambda: drained(100, None, lost=1), False),
        (lambda: Failed("refused"), False),
    ],
)
def test_only_a_race_without_loss_double_and_trouble_is_clean(
    race: Race, done: Callable[[], Drained | Exception], clean: bool
) -> None:
    us = schedd(done())
    race.run(1, us)

    assert race.clean(us) is clean


def test_a_summary_can_be_printed(race: Race) -> None:
    us = schedd(drained(100, 1.0))

    assert json.dumps([race.run(1, us), race.summary(us)])


def test_a_spread_is_the_median_and_its_extremes() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2, "min": 1, "max": 3}
    assert spread([]) is None


def test_a_ratio_needs_both() -> None:
    assert ratio(2.0, 3.0) == 0.667
    assert ratio(None, 3.0) is None
    assert ratios({1: 2.0, 2: 8.0, 3: 1.0}, {2: 4.0, 3: 4.0}) == [2.0, 0.25]


def test_contestants_are_distinguished_by_name() -> None:
    names = [OURSELVES.name, *(peer.name for peer in PEERS)]

    assert len(set(names)) == len(names)


def test_each_peer_is_pinned_to_an_exact_version() -> None:
    for environment in {id(peer.environment): peer.environment for peer in PEERS}.values():
        assert all(version[0].isdigit() for version in environment.packages.values())


def test_another_version_is_another_environment() -> None:
    older = Environment("toy", Tool.PYTHON, {"toy": "1.0"})
    newer = Environment("toy", Tool.PYTHON, {"toy": "1.1"})

    assert older.key != newer.key


def test_without_node_its_peers_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(LeftOut, match="no node"):
        Environment("toy", Tool.NODE, {"toy": "1.0"}).installed(tmp_path)


def test_without_redis_its_peers_are_left_out_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_BIN", "no-such-program")

    with pytest.raises(LeftOut, match="apt-get install redis-server"), durable_redis("always"):
        pass
