"""The pages on fault tests agree with the evidence and name every test."""

from __future__ import annotations

from typing import Any

from faults.collected import cases, functions
from faults.evidence import REJECTIONS, TRIALS
from faults.page import MEASUREMENTS, PAGE, measurements, merge_set, page, read_evidence
from faults.rows import ROWS

WHEN = {"date": "2026-11-21", "commit": "abc1234"}


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


def test_the_pages_agree_with_the_evidence() -> None:
    known = read_evidence(TRIALS), read_evidence(REJECTIONS)
    wanted = {
        PAGE: page(read_evidence(), cases(), *known),
        MEASUREMENTS: measurements(read_evidence(), merge_set(), cases(), *known),
    }
    for path, text in wanted.items():
        assert path.read_text(encoding="utf-8") == text, "cd tests && python -m faults.page"


def test_every_test_of_a_fault_has_its_row_and_every_row_its_test() -> None:
    named = [test for row in ROWS for test in row.tests if test != "faults-long"]
    assert sorted(named) == sorted(functions())


def test_a_row_without_a_test_has_a_reason() -> None:
    assert [row.fault for row in ROWS if not (row.tests or row.elsewhere or row.lacks)] == []


def test_the_page_marks_untested_faults() -> None:
    text = page([], {})
    for row in ROWS:
        [line] = [
            line for line in text.splitlines() if line.startswith(f"| {row.fault} | {row.does}")
        ]
        tested = bool(row.tests or row.elsewhere)
        assert line.endswith("| yes |" if tested else "| [no](#what-isnt-tested) |")


def test_the_measurements_name_the_tests_of_each_fault() -> None:
    text = measurements([], [], {})
    for row in ROWS:
        lines = [line for line in text.splitlines() if line.startswith(f"| {row.fault} | ")]
        named = [f"`{test}`" in line for line in lines for test in (*row.tests, *row.elsewhere)]
        assert all(named)
        assert len(lines) == bool(named)


def test_the_last_of_two_measurements_of_a_test_is_on_the_page() -> None:
    first, second = measured("test_leader_killed", judged=111), measured("test_leader_killed")
    text = measurements([first, second], ["test_leader_killed"], {})
    assert "● `test_leader_killed` | 300 | 2 | 3 | 0 | 0 | 1 | 2.0 s |" in text
    assert "111" not in text


def test_the_summary_adds_up_all_measurements() -> None:
    lines = [measured("test_leader_killed"), measured("test_etcd_full", lost=1)]
    trial = WHEN | {"build": "no-fence", "trial": "no faults", "right": True, "broken": []}
    text = page(lines, {}, [trial])
    compared = "scheduled times that the fault tests checked, in 2 test cases"
    assert f"| {compared} | 600 | 2026-11-21 |" in text
    assert "they have no run, and no row with a reason | 1 | 2026-11-21 |" in text
    successor = "time from the kill of a leader or owner to the takeover, with leases of 3 s"
    assert f"| {successor} | 2.5 s at most | 2026-11-21 |" in text
    caught = (
        "copies of schedd from which one guarantee was removed, and in which the checker found"
        " the defect"
    )
    assert f"| {caught} | 1 of 1 | 2026-11-21 |" in text


def test_a_parametrised_test_has_a_line_for_each_of_its_cases() -> None:
    names = [f"test_member_killed_at[{case}]" for case in "ab"]
    text = measurements(map(measured, names), [], {"test_member_killed_at": ["a", "b"]})
    assert text.count("`test_member_killed_at[") == 4  # a line of figures and one of seconds each


def test_an_unmeasured_case_is_marked_and_a_removed_case_is_left_out() -> None:
    names = [f"test_member_killed_at[{case}]" for case in ("a", "of old")]
    text = measurements(map(measured, names), [], {"test_member_killed_at": ["a", "b"]})
    assert "| `test_member_killed_at[a]` | 300 |" in text
    assert "| `test_member_killed_at[b]` | not measured yet |" in text
    assert "of old" not in text


def test_the_cases_of_a_test_are_named_as_pytest_names_them() -> None:
    known = cases()
    assert "fire.before_commit" in known["test_member_killed_at"]
    assert known["test_owner_stopped_for_long"] == ["60"]
    assert "+0 x2-3" in known["test_wall_clock_moved"]
    assert "test_leader_killed" not in known


def test_a_run_of_drawn_faults_shows_the_resources_before_and_after() -> None:
    held = {
        "members": {"processes": 3, "rss_kib": [204800, 215040], "fds": [90, 91], "threads": [9, 9]}
        | {"connections": [12, 12]},
        "workers": {"processes": 4, "rss_kib": [102400, 102400], "fds": [50, 50], "threads": [8, 8]}
        | {"spool_bytes": [0, 7]},
    }
    long = measured("faults-long, seed 7") | {"measured": {"faults": 9, "held": held}}
    text = measurements([long], [], {})
    assert (
        "| `faults-long, seed 7`: 9 faults in 24 s | 3 members"
        " | 200 → 210 MiB | 90 → 91 | 9 → 9 | 12 → 12 |  |" in text
    )
    assert "| ″ | 4 workers | 100 → 100 MiB | 50 → 50 | 8 → 8 |  | 0 → 7 B |" in text


def test_a_spoiled_wire_shows_its_counts() -> None:
    wire = {"way": "reset", "found": 6, "found_struck": 6, "struck_up": 9, "struck_down": 8}
    wire |= {"bytes_up": 0, "bytes_down": 0, "least_late": None}
    line = measured("test_leader_killed") | {"measured": {"wire": wire}}
    wanted = "6 of 6 open connections struck, 17 connections cut in mid-frame"
    assert wanted in measurements([line], [], {})


def test_other_load_of_the_machine_is_reported() -> None:
    assert "| on time again after 1.0 s | 26 | 24 | 2026-11-21 |" in measurements(
        [measured("test_leader_killed") | {"measured": {"healing_s": 1.0}, "load": 25.9}], [], {}
    )


def test_a_failed_measurement_is_marked() -> None:
    failed = measured("test_leader_killed") | {"status": "violated"}
    assert "**violated**" in measurements([failed], [], {})


def test_violations_are_named_once_for_each_invariant() -> None:
    late = [{"invariant": "L2", "what": f"r952775657-two-{n} started late"} for n in (1, 2, 3)]
    other = {"invariant": "S1", "what": "two results | accepted"}
    failed = measured("test_leader_killed") | {"status": "violated", "violations": [*late, other]}
    wanted = "**violated** (L2: two-1 started late, and 2 more; S1: two results / accepted) |"
    assert wanted in measurements([failed], [], {})


def test_the_last_measurement_of_a_rejection_is_shown() -> None:
    line = {"change": "read-only", "cause": "PostgreSQL is read-only", "named_s": 9.9}
    line |= {"well_s": 5.04, "lasted_s": 30.0, "jobs": 100, "date": "2026-11-28"}
    text = measurements([], [], {}, rejections=[line, line | {"named_s": 0.3}])
    wanted = (
        "| read-only | PostgreSQL is read-only | 0.3 s | 5.0 s | 30 s | 100 runs/s | 2026-11-28 |"
    )
    assert text.count("| read-only |") == 1
    assert wanted in text


def test_evidence_from_before_a_rename_is_shown_under_the_present_names() -> None:
    known = {"date": "2026-11-21", "commit": "abc1234", "right": True}
    caught = known | {"build": "fold-unwritten", "ride": "all members killed", "broken": ["L1"]}
    whole = known | {"build": "(the product)", "ride": "calm", "broken": []}
    text = measurements([], [], {}, [caught, whole])
    [line] = [line for line in text.splitlines() if "`merged-rows-unwritten`" in line]
    assert line.endswith("| all members killed | L1 | L1 | 2026-11-21, abc1234 |")
    assert "| no mutant: no change | no faults | none | none | 2026-11-21, abc1234 |" in text


def test_each_mutant_and_each_trial_of_the_product_names_its_violations() -> None:
    known = {"date": "2026-11-21", "commit": "abc1234", "right": True}
    caught = known | {"build": "no-catch-up", "trial": "all members killed", "broken": ["L1"]}
    whole = known | {"build": "(the product)", "trial": "no faults", "broken": []}
    text = measurements([], [], {}, [caught, whole])
    [line] = [line for line in text.splitlines() if "`no-catch-up`" in line]
    assert line.endswith("| all members killed | L1 | L1 | 2026-11-21, abc1234 |")
    assert "| no mutant: no change | no faults | none | none | 2026-11-21, abc1234 |" in text
    assert "| no mutant: no change | all members killed | none | not measured yet | |" in text
