"""Test processes that are forked from a process that has imported the tests."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from execnet import XSpec

from support import preloaded

LOADED = """
import sys
for name in ("test_whole", "test_broken"):
    print(name in sys.modules)
print(sys.stdin.read())
"""


def test_a_forked_process_has_the_imported_tests_except_broken_ones(tmp_path: Path) -> None:
    """Pytest would take a half imported file for a file with fewer tests."""
    (tmp_path / "test_whole.py").write_text("def test_one(): ...\n")
    (tmp_path / "test_broken.py").write_text("from os import no_such_name\n")
    spec = XSpec("popen")
    arguments = ["--import-mode=importlib", "--rootdir", str(tmp_path), str(tmp_path)]
    with preloaded.started(tmp_path, arguments, [spec]):
        assert spec.python is not None
        process = subprocess.run(
            [*shlex.split(spec.python), "-c", "exec(eval(sys.stdin.readline()))"],
            input=f"{LOADED!r}\nits own input",
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert process.stdout == "True\nFalse\nits own input\n", process.stderr
