"""Judge a kept history again, from the folder `tests`:

    ../.venv/bin/python -m faults.checker DIRECTORY [--json] [--write]

Prints the table, or the verdict as JSON; `--write` replaces the directory's verdict.json. Exit
code: 0 all holds, 1 something was violated, 2 inconclusive, 64 no history there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from faults.checker import check, table
from faults.history import History, NoHistory, Recorder

NO_HISTORY = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m faults.checker", description=__doc__)
    parser.add_argument("directory", type=Path, help="what a run of the faults' harness left")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("--write", action="store_true", help="replace verdict.json")
    asked = parser.parse_args(arguments)
    try:
        history = History.read(asked.directory)
    except NoHistory as error:
        print(error, file=sys.stderr)
        return NO_HISTORY
    verdict = check(history)
    if asked.write:
        Recorder(asked.directory).verdict(verdict.as_json())
    print(json.dumps(verdict.as_json(), indent=2) if asked.json else table(verdict), end="")
    return verdict.status.exit_code


if __name__ == "__main__":
    sys.exit(main())
