"""The protocol holds under the worst faults, and needs each of its rules (faults.model).

A short form of `make model`. In CI the seeds are fixed; elsewhere each run draws a block of them,
and names them if something breaks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from faults.model import search, story, table
from faults.model.__main__ import main
from faults.model.rules import MEANINGS, Rule, taken_out
from faults.model.weather import HARSH
from support.repository import ROOT

FIXED = 50
KEPT = (502_552, 56_071_261, 197_028_083)
"""Seeds that once broke an invariant: two restores of etcd with few lists between them; a turn that
was given back while the job moved to another shard, and was lost in the model, not in the product;
a recovery that its leader didn't finish, whose successor met an etcd that was restored meanwhile.
"""
DRAWN = 50
WITHOUT_AT_MOST = 500
"""Seeds within which the absence of a rule must show."""

R = Rule
BREAKS_AT: dict[Rule, int] = {
    R.TOKENS_UNDER_LOCK: 65,
    R.TIMELINE: 178,
    R.CALLS_LOCK_SHARD: 207,
    R.MOVE_CLOCK_FLOOR: 9,
    R.SHARD_FROM_TIMER: 36,
    R.UNIQUE_INSTANT: 15,
    R.FIRED_RUNNING_IF_INSERTED: 24,
    R.PAUSED_WHEN_BACK: 20,
    R.EDITED_WHEN_DUE: 82,
    R.EDIT_ENDS_WHAT_WAS_DUE: 18,
    R.PRE_DISPATCHED_IN_TURN: 8,
    R.INSERT_LOCKS_TIMER: 36,
    R.OK_ASKS_ENDED: 42,
    R.OK_ONE_TIMELINE: 32,
    R.JUDGED_AT_START: 46,
    R.RESEND_KEEPS_START_BY: 18,
    R.SAME_TOKEN_SAME_ANSWER: 9,
    R.REFUSAL_OF_ITS_OWN: 36,
    R.LOWER_BOUND: 8,
    R.START_BY_FROM_INSTANT: 246,
    R.BACK_AS_FRESH: 19,
    R.LOST_WAITS: 88,
    R.HEARTBEAT_STAMPED: 23,
    R.HEARTBEAT_LISTS_SPOOL: 21,
    R.BACK_COMPARES_TOKEN: 50,
    R.DELETION_WATCHED: 11,
    R.LEFTOVERS_KILLED: 10,
    R.AT_MOST_ONCE_RETURNED: 9,
    R.CONNECTION_LOOKED_AT: 11,
    R.WORKERS_WRITTEN_OFF: 19,
    R.BACK_NOT_OF_LOST: 18,
    R.REFUSAL_DOUBTED: 30,
    R.DOUBTFUL_ENDED: 15,
    R.REPORT_DOUBTED: 66,
    R.REPORTS_WAITED_FOR: 175,
    R.ONCE_NOT_CAUGHT_UP: 17,
    R.ONCE_LATE_NEITHER: 17,
    R.TURN_OF_NEW_ROWS: 15,
    R.JOIN_ARRIVES_WITH_END: 13,
    R.JOIN_UNDER_FENCE: 12,
    R.JOIN_COMPARES_ARRIVALS: 430,
    R.JOIN_TAKES_AWAY_AT_ONCE: 56,
    R.JOIN_ID_RECKONED: 13,
    R.JOIN_COMING_IN_ONE: 116,
}
"""Where the absence of a rule showed when this was written, if not at once: looked at first. A
model that changed meanwhile shows it elsewhere, and the search takes longer.
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_invariant_breaks_while_all_rules_hold(figure: Callable[[str], None]) -> None:
    first = 10_000 if os.environ.get("CI") else random.randrange(10_000, 10**9)
    tally = search.tally([*KEPT, *range(FIXED), *range(first, first + DRAWN)])
    assert not table.examples(tally), "see it by: make model SEED=…"
    assert not table.meager(tally)
    figure(f"protocol model: {table.all_rules(tally)}; drawn from {first}")


@pytest.mark.slow
@pytest.mark.parametrize("rule", Rule)
def test_without_a_rule_an_invariant_breaks(rule: Rule) -> None:
    seeds = (BREAKS_AT.get(rule, 0), *range(WITHOUT_AT_MOST))
    outcomes = search.outcomes(seeds, taken_out(rule))
    assert any(outcome.broken for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in Rule if MEANINGS[rule].beside])
def test_an_invariant_breaks_by_the_removed_rule_alone(rule: Rule) -> None:
    beside = taken_out(rule) - {rule}
    weather = HARSH[rule]
    assert not any(search.outcome(seed, beside, weather).broken for seed in range(60))


def test_each_rule_has_a_description_and_belongs_to_a_rule_of_the_page() -> None:
    assert set(MEANINGS) == set(Rule)
    page = (ROOT / "docs" / "protocol-rules.md").read_text(encoding="utf-8")
    assert [rule for rule in Rule if f"| {MEANINGS[rule].place} |" not in page] == []


def test_one_seed_is_one_trace() -> None:
    def trace() -> list[str]:
        lines: list[str] = []
        story.replay(7, frozenset({Rule.OK_WAITS}), lines.append)
        return lines

    assert trace() == trace()
    assert len(trace()) > story.LAST


@pytest.mark.slow
@pytest.mark.parametrize("count", ["0", "-3", "1.5", "many"])
def test_fewer_seeds_than_one_are_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--seeds", count])
    assert ended.value.code == 2
    assert "isn't valid: give a whole number, 1 or more" in capsys.readouterr().err
