"""Run the tests that failed beside others once more, alone: `python -m support.repeated CODE`.

A test that is judged by the second can fail because the machine stood still. CODE is what pytest
exited with. The exit code here is 0 if at most `MOST` tests had failed and all of them pass alone.
Their names are printed, so that a test that often needs this is found and fixed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 3
KEY: Final = "repeated/failed"


def remember(config: pytest.Config, failed: Sequence[str]) -> None:
    """Keep the node ids of the failed tests for `main`."""
    if (cache := getattr(config, "cache", None)) is not None:
        cache.set(KEY, sorted(set(failed)))


def main(code: int, root: Path) -> int:
    """Return the exit code of the run: `code`, or 0 if the failed tests pass when repeated."""
    kept = root / ".pytest_cache" / "v" / KEY
    failed = json.loads(kept.read_text("utf-8")) if kept.exists() else []
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        return code
    sys.stdout.write(f"\n== {len(failed)} failed beside others: each once more, alone\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "--numprocesses", "0", *failed]
    again = subprocess.run(command, cwd=root, check=False).returncode
    if not again:
        sys.stdout.writelines(f"failed beside others, passed alone: {name}\n" for name in failed)
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(__file__).parents[2]))
