"""N-1: the version before this one, from the repository's own history, and how its code is run.

    code = lay(folder)                the tree of `BEFORE`, and an interpreter that runs only it
    [code.python, "-P", "-m", "schedd", …]

Invariants
- What `python` runs is the tree's: it knows this environment's packages, but not where this tree
  is, so nothing of this tree can be imported in its stead, in no child process either.
- `lay` asks it, and says so when it isn't so.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

BEFORE: Final = "832ebf9ad5231f87aff25be440be78e2637a7bf0"
"""The commit that counts as N-1; the tag of the last release, once there is one. With it changes
`tests/golden` (`python -m support.golden`, from the folder `tests`)."""

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGES: Final = ("schedd", "workerd", "schedkit", "schedclient", "schedctl", "schedproto")
ROOTS: Final = (".", "client", "proto")
ASK: Final = f"""
import importlib
for name in {PACKAGES}: print(importlib.import_module(name).__file__)
"""


class NoSuchVersion(Exception):
    """N-1 can't be had here, and why."""


@dataclass(frozen=True, slots=True)
class Code:
    """A version of the product: `python` runs it, and nothing of another."""

    name: str
    python: Path

    def runs(self, pid: int) -> bool:
        """Whether the process was started by this interpreter."""
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command.split(b"\0")[0] == os.fsencode(self.python)


HERE: Final = Code("N", Path(sys.executable))
"""This tree's."""


def lay(folder: Path) -> Code:
    """Make N-1's tree in `folder`/tree, with an interpreter for it.

    Raises:
        NoSuchVersion: the repository's history lacks it, or something else would run.
    """
    tree = folder / "tree"
    with tarfile.open(fileobj=BytesIO(_archive())) as archive:
        archive.extractall(tree, filter="data")
    home = folder / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    site = home / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    paths = [tree / root for root in ROOTS]
    # A folder that a .pth file names has no .pth files read: there stands where this tree is.
    lines = [*paths, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "before.pth").write_text("".join(f"{line}\n" for line in lines))
    code = Code(f"N-1 ({BEFORE[:7]})", home / "bin" / "python")
    _assert_only(code, tree)
    for package in ("schedd", "workerd", "client", "proto"):
        compileall.compile_dir(tree / package, quiet=2)  # not by each of many that start at once
    return code


def _archive() -> bytes:
    made = subprocess.run(
        ["git", "archive", "--format=tar", BEFORE], cwd=REPOSITORY, capture_output=True, check=False
    )
    if made.returncode:
        raise NoSuchVersion(
            f"N-1 is {BEFORE}, and git can't give it: {made.stderr.decode().strip()}."
            " It needs the repository's whole history: git fetch --unshallow"
        )
    return made.stdout


def _assert_only(code: Code, tree: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    asked = [os.fspath(code.python), "-P", "-c", ASK]
    answer = subprocess.run(
        asked, cwd=tree.parent, env=plain, capture_output=True, text=True, check=False
    )
    files = [Path(line) for line in answer.stdout.splitlines()]
    strangers = [file for file in files if not file.is_relative_to(tree.resolve())]
    if answer.returncode or strangers or len(files) != len(PACKAGES):
        raise NoSuchVersion(
            f"{code.name} isn't what {code.python} runs: {strangers} {answer.stderr}"
        )
