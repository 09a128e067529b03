"""A worker's host runs out of descriptors: attempts are given back, what ended has ended.

`support/starved.py` is the process that has none left; a handler that leaks them would do the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.starved import CODE
from workerd.process import cgroups

GROUPED = pytest.mark.skipif(
    (place := cgroups.tree_of("x")) is None or not os.access(place.parent, os.W_OK),
    reason="no cgroup can be made here",
)
ENDED = {"verdict": "FAILED", "code": CODE, "began": True, "error": f"exit code {CODE}"}
pytestmark = [
    pytest.mark.parametrize("way", [pytest.param("cgroups", marks=GROUPED), "births"]),
    pytest.mark.parametrize("greed", [[], ["greedy"]], ids=["alone", "greedy"]),
]


def lived(home: Path, *story: str) -> list[dict[str, Any]]:
    """The attempts of a story but for its first and last; nothing is left of any."""
    (home / "scratch").mkdir()
    tests = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-m", "support.starved", str(home), *story],
        cwd=tests,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, *attempts, last, left = map(json.loads, ended.stdout.splitlines())
    assert first == last == ENDED, "with room it works, before and after"
    assert left == {"leaked": {}, "alive": [], "scratch": []}
    return attempts


@pytest.mark.parametrize("story", ["start", "user"])
def test_an_attempt_that_finds_no_descriptor_is_given_back_and_leaves_nothing(
    tmp_path: Path, way: str, greed: list[str], story: str
) -> None:
    attempts = lived(tmp_path, way, story, *greed)
    for each in attempts:
        left = each.pop("left")
        if each != ENDED:
            assert each["verdict"] == "RETURNED", f"{left}: {each}"
            assert "Too many open files" in each["error"], f"{left}: {each}"
    assert not attempts[0]["began"]
    assert attempts[-1] == ENDED


def test_an_attempt_that_ends_when_there_is_none_left_has_ended(
    tmp_path: Path, way: str, greed: list[str]
) -> None:
    """Given back, it would be done twice; and what it left behind is ended all the same."""
    assert lived(tmp_path, way, "end", *greed) == [ENDED]


def test_an_attempt_can_be_killed_when_there_is_none_left(
    tmp_path: Path, way: str, greed: list[str]
) -> None:
    (cancelled,) = lived(tmp_path, way, "kill", *greed)
    assert cancelled["verdict"] == "CANCELLED"
