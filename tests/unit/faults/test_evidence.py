"""A line of evidence says what its history says."""

from __future__ import annotations

from faults.checker.verdict import Figures, Verdict
from faults.evidence import line_of
from faults.history import Meta

META = Meta(
    scenario="test_leader_killed",
    seed=7,
    began=1_795_268_500.0,
    ended=1_795_268_524.5,
    member_ttl=3.0,
    worker_ttl=3.0,
    failover=5.0,
    grace=4.0,
    command="make faults ARGS='-k leader_killed'",
    commit="abc1234",
)
VERDICT = Verdict("test_leader_killed", 7, Figures(judged=300, lost=1))


def test_a_line_names_test_day_figures_and_the_command_that_repeats_it() -> None:
    line = line_of(META, VERDICT, {"successor_s": 2.5})
    assert (line["test"], line["date"], line["seconds"]) == (META.scenario, "2026-11-21", 24.5)
    assert (line["at"], line["commit"]) == ("13:42:04", "abc1234")
    assert (line["figures"]["judged"], line["figures"]["lost"]) == (300, 1)
    assert line["measured"] == {"successor_s": 2.5}
    assert line["command"] == META.command


def test_each_seed_of_drawn_faults_has_a_line_of_its_own() -> None:
    meta = Meta("faults-long", 7, 0.0, 480.0, 3.0, 3.0, 5.0, 4.0)
    assert line_of(meta, VERDICT, {})["test"] == "faults-long, seed 7"
