"""What the rows measured, as JSON lines in docs/evidence, one file a set of rows."""

from __future__ import annotations

import json
import time
from pathlib import Path

from faults.checker.verdict import Verdict
from faults.scenario import Run

FOLDER = Path(__file__).parents[2] / "docs" / "evidence"


def append(test: str, verdict: Verdict, run: Run) -> None:
    """Add one line to `docs/evidence/faults.jsonl`."""
    line = {
        "test": test,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **verdict.as_json(),
        "seconds": round(time.time() - run.began, 1),
        "measured": run.figures,
        "command": run.command,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "faults.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
