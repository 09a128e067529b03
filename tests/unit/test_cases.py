"""tests/cases: each public case names the tests that show its behavior, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = {"running": ("R", 19), "hostile": ("H", 12), "cron": ("C", 23)}
ROW = re.compile(r"^\| *([A-Z]\d+) *\|.*\|([^|]*)\|$", re.MULTILINE)


def rows(page: str) -> dict[str, list[str]]:
    """Return, by case, the tests that its row names."""
    text = (TESTS / "cases" / f"{page}.md").read_text(encoding="utf-8")
    return {case: re.findall(r"`([^`]+)`", tests) for case, tests in ROW.findall(text)}


@cache
def functions(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("page", CASES)
def test_every_case_has_a_row_with_tests(page: str) -> None:
    letter, count = CASES[page]
    found = rows(page)
    assert list(found) == [f"{letter}{number}" for number in range(1, count + 1)]
    assert [case for case, tests in found.items() if not tests] == []


@pytest.mark.parametrize("page", CASES)
def test_every_test_that_a_case_names_exists(page: str) -> None:
    missing = []
    for case, tests in rows(page).items():
        for test in tests:
            file, _, name = test.partition("::")
            if not (TESTS / file).is_file() or name not in functions(file):
                missing.append(f"{case}: {test}")
    assert missing == []
