"""Named edits of the product's text, and copies of the tree with them.

An edit must find its text exactly once, or it raises: code that has moved on takes its mutant along
or the mutant is gone, and tests/unit/faults/test_mutants.py (part of `make test`) reports that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("schedd", "workerd", "client", "proto")
"""Folders that daemons are made of."""


class DoesNotApply(Exception):
    """The text to replace isn't there, or more than once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In `file`, replace the only place of `old` by `new`."""

    file: str
    old: str
    new: str

    def made(self, text: str) -> str:
        """The text with it.

        Raises:
            DoesNotApply: names the file and the text.
        """
        found = text.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.file} has {found} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)


def edited(edits: Iterable[Edit], root: Path = ROOT) -> dict[str, str]:
    """File → its text with all edits of it, in their order. Raises DoesNotApply."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or (root / edit.file).read_text(encoding="utf-8")
        texts[edit.file] = edit.made(text)
    return texts


class Tree:
    """A copy of the product with edits, for daemons to run."""

    def __init__(self, folder: Path, edits: Iterable[Edit]) -> None:
        self.folder = folder
        texts = edited(edits)
        for package in PACKAGES:
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, folder / package, ignore=skip)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment in which Python takes this copy rather than what is installed."""
        paths = (self.folder, self.folder / "client", self.folder / "proto")
        return {
            "PYTHONPATH": os.pathsep.join(map(os.fspath, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def prove(self) -> None:
        """See that it is this copy that runs.

        Raises:
            RuntimeError: something else does.
        """
        where = "import schedd, workerd, schedkit; print(schedd.__file__, schedkit.__file__)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", where],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=True,
        )
        if not all(each.startswith(os.fspath(self.folder)) for each in done.stdout.split()):
            raise RuntimeError(f"daemons would run {done.stdout.strip()}, not {self.folder}")
