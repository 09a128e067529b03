"""The tests of this folder: which there are and how they are marked, read from their source; and
the cases of those that are run with several, by pytest's own names for them.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def functions() -> dict[str, bool]:
    """Name of each test → whether it is marked `full` (left out of the merge set)."""
    found: dict[str, bool] = {}
    for file in sorted(FOLDER.glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                found[node.name] = "pytest.mark.full" in marks
    return found


def cases() -> dict[str, Sequence[str]]:
    """Name of each parametrised test → its cases, as they stand in the brackets of its name."""
    return {
        name: ids
        for file in sorted(FOLDER.glob("test_*.py"))
        for name, test in vars(importlib.import_module(f"faults.{file.stem}")).items()
        if name.startswith("test_") and (ids := [*_ids(test)])
    }


def _ids(test: Any) -> Iterator[str]:
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    assert len(marks) <= 1, f"{test.__name__} is parametrised twice: its cases have other names"
    for mark in marks:
        values = mark.args[1]
        named = mark.kwargs.get("ids") or ("-".join(_texts(value)) for value in values)
        yield from map(str, named)


def _texts(value: object) -> Iterator[str]:
    """As pytest names a case: by its plain values."""
    for each in value if isinstance(value, tuple) else (value,):
        assert isinstance(each, str | int | float), f"{each!r} has no name of its own"
        yield str(each)
