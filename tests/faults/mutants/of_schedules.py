"""Mutants about schedules: what becomes of fixed times where clocks change."""

from __future__ import annotations

from collections.abc import Sequence

from faults.mutants import trials
from faults.mutants.edits import Edit
from faults.mutants.mutant import Mutant

DST = "schedd/core/schedule/cron/dst.py"

OF_SCHEDULES: Sequence[Mutant] = (
    Mutant(
        "twice-when-clocks-go-back",
        "a fixed time in the repeated hour runs twice, as in croniter",
        (Edit(DST, "dst.overlap is DstOverlap.FIRST:", "dst.overlap is None:"),),
        trials.BACK,
        "S6",
    ),
    Mutant(
        "gap-skipped",
        "a fixed time in the skipped hour doesn't run",
        (Edit(DST, " or dst.gap is DstGap.SKIP:", " or dst.gap is not None:"),),
        trials.FORWARD,
        "L1",
    ),
)
