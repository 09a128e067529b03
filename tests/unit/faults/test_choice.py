"""A row is chosen by its whole name, as docs/evidence/fault-tests.md has it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

import pytest

from faults.choice import refusal
from faults.page import MEASUREMENTS
from support.repository import ROOT

KNOWN = ["test_worker_killed", *(f"test_worker_killed_at[{n}]" for n in range(7))]


def collected(*options: str) -> tuple[int, Sequence[str], str]:
    """The exit code, the names of what would run, and what was said, of pytest with these."""
    command = [sys.executable, "-m", "pytest", "tests/faults", "--collect-only", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    return done.returncode, names, done.stdout + done.stderr


def test_each_row_of_the_page_can_be_chosen_by_the_name_that_it_has_there() -> None:
    rows = MEASUREMENTS.read_text(encoding="utf-8").partition("## Rejections by")[0]
    names = re.findall(r"^\| (?:● )?`(test_[^`]+)` \|", rows, re.MULTILINE)
    options = [word for name in names for word in ("--row", name)]
    code, found, _ = collected(*options)
    assert (code, sorted(found)) == (0, sorted(names))


def test_an_unknown_row_fails_and_names_similar_ones() -> None:
    code, names, said = collected("--row", "test_worker_kiled")
    assert (code, names) == (4, [])
    assert "no test of exactly this name; near are 'test_worker_killed'" in said


def test_a_row_that_the_merge_set_lacks_is_reported_as_left_out() -> None:
    code, _, said = collected("-m", "not full", "--row", "test_wall_clock_moved[+0 x2-3]")
    assert code == 4
    assert "-m or -k leaves it out; `make faults-all` has every row" in said


def test_known_names_are_accepted() -> None:
    assert refusal(KNOWN, KNOWN, KNOWN) is None


def test_one_unknown_name_among_known_ones_is_refused() -> None:
    refused = refusal(["test_worker_killed", "zzz"], KNOWN, KNOWN)
    assert refused == "--row 'zzz': there is no test of exactly this name"


def test_a_name_without_its_case_is_rejected_with_the_cases() -> None:
    refused = refusal(["test_worker_killed_at"], KNOWN, KNOWN) or ""
    assert refused.endswith("'test_worker_killed_at[4]', and 2 more")


@pytest.mark.parametrize("target", ["faults", "faults-all"])
def test_make_passes_the_whole_name(target: str) -> None:
    name = "test_wall_clock_moved[+0 x2-3]"
    command = ["make", "--dry-run", "--no-print-directory", target, f"ROW={name}"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30).stdout
    words = shlex.split(output.splitlines()[-1])
    assert words[words.index("--row") + 1] == name
