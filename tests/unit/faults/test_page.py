"""docs/reliability.md says what the evidence says, of every test there is."""

from __future__ import annotations

from typing import Any

from faults.collected import functions
from faults.page import PAGE, merge_set, page, read_evidence
from faults.rows import ROWS


def measured(test: str, **figures: Any) -> dict[str, Any]:
    known = {
        "judged": 300,
        "late": 2,
        "missed_with_reason": 3,
        "lost": 0,
        "doubled_without_explanation": 0,
        "extra_starts_explained": 1,
        "longest_gap_s": 2.04,
    }
    return {
        "test": test,
        "date": "2026-11-21",
        "status": "ok",
        "figures": known | figures,
        "seconds": 24.4,
        "measured": {"successor_s": 2.5},
    }


def test_the_page_is_what_the_evidence_gives() -> None:
    wanted = page(read_evidence(), merge_set())
    assert PAGE.read_text(encoding="utf-8") == wanted, "cd tests && python -m faults.page"


def test_every_test_of_a_fault_has_its_row_and_every_row_its_test() -> None:
    named = [test for row in ROWS for test in row.tests if test != "faults-long"]
    assert sorted(named) == sorted(functions())


def test_a_row_without_a_test_says_why() -> None:
    assert [row.fault for row in ROWS if not (row.tests or row.elsewhere or row.lacks)] == []


def test_of_two_measurements_of_one_test_the_last_stands_on_the_page() -> None:
    first, second = measured("test_leader_killed", judged=111), measured("test_leader_killed")
    text = page([first, second], ["test_leader_killed"])
    assert "● `test_leader_killed` | 300 | 2 | 3 | 0 | 0 | 1 | 2.0 s |" in text
    assert "111" not in text


def test_a_parametrised_test_has_a_line_for_each_of_its_cases() -> None:
    text = page([measured("test_member_killed_at[a]"), measured("test_member_killed_at[b]")], [])
    assert text.count("`test_member_killed_at[") == 4  # a line of figures and one of seconds each


def test_a_measurement_that_failed_says_so() -> None:
    failed = measured("test_leader_killed") | {"status": "violated"}
    assert "**violated**" in page([failed], [])
