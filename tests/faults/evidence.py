"""Measurements of a run, as a JSON line in docs/evidence; from the folder `tests`:

    ../.venv/bin/python -m faults.evidence DIRECTORY…

judges kept histories again and appends what they show. `EVIDENCE=1 make faults` does so as it goes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faults.checker import check
from faults.checker.verdict import Verdict
from faults.history import History, Meta

FILE = Path(__file__).parents[2] / "docs" / "evidence" / "faults.jsonl"
TRIALS = FILE.with_name("mutants.jsonl")
"""Where `EVIDENCE=1 make mutants` tells what became of each."""
REJECTIONS = FILE.with_name("rejections.jsonl")
"""Measurements of `tests/acceptance/test_rejections.py`."""
FIGURES = "figures.json"
"""In a history's directory: what its run measured itself."""


def line_of(meta: Meta, verdict: Verdict, figures: dict[str, Any]) -> dict[str, Any]:
    """Return a line: test, time (UTC), commit, verdict, what was measured beside it,
    how to repeat it; and how many processes wanted the machine in the last minute, for who waits
    for it is late.
    """
    drawn = meta.scenario == "faults-long"
    return {
        "test": f"{meta.scenario}, seed {meta.seed}" if drawn else meta.scenario,
        **when(meta.ended),
        "commit": meta.commit,
        **verdict.as_json(),
        "seconds": round(meta.ended - meta.began, 1),
        "load": round(os.getloadavg()[0], 1),
        "measured": figures,
        "command": meta.command,
    }


def when(at: float) -> dict[str, str]:
    """The day and the time of day, UTC."""
    moment = time.gmtime(at)
    return {"date": time.strftime("%Y-%m-%d", moment), "at": time.strftime("%H:%M:%S", moment)}


def append(directory: Path, history: History, verdict: Verdict, file: Path = FILE) -> None:
    """Add the line of this history."""
    figures = directory / FIGURES
    measured = json.loads(figures.read_text()) if figures.exists() else {}
    if history.stalls:
        measured["machine_stood_still_s"] = max(stall.late for stall in history.stalls)
    write(line_of(history.meta, verdict, measured), file)


def write(line: Mapping[str, Any], file: Path) -> None:
    """Add this line."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        kept = History.read(Path(name))
        append(Path(name), kept, check(kept))
