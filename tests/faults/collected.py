"""The tests of this folder, read from their source without running or importing any of it."""

from __future__ import annotations

import ast
from pathlib import Path

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
