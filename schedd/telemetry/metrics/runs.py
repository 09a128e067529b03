"""Outcomes of scheduled times, attempts and runs."""

from __future__ import annotations

from typing import Final

from schedd.core.runs.lifecycle import Reason
from schedd.telemetry.metrics.registry import LONG, PROMPT, Maker

MISSED_FOR: Final = (
    Reason.WINDOW,
    Reason.CATCH_UP_NONE,
    Reason.START_DEADLINE,
    Reason.EDITED,
    Reason.DELETED,
)
"""Reasons for missed times; each has a series from the beginning, at 0."""


class RunMetrics:
    """From due to ended."""

    def __init__(self, make: Maker) -> None:
        self.fired = make.counter("schedd_runs_fired", "Runs inserted by their schedule.")
        self.folded = make.counter(
            "schedd_runs_folded", "Rows for scheduled times that didn't run, merged if consecutive."
        )
        self.missed = make.counter(
            "schedd_instants_missed", "Scheduled times that were missed.", "reason"
        )
        for reason in MISSED_FOR:
            self.missed.labels(reason.value)
        self.dead_letters = make.counter("schedd_dead_letters", "Runs that failed for good.")
        self.fire_lateness = make.histogram(
            "schedd_fire_lateness_seconds", "Time from due to inserted; 0 if early.", PROMPT
        )
        self.assigned = make.counter("schedd_runs_assigned", "Runs dispatched to workers.")
        self.wait = make.histogram(
            "schedd_run_wait_seconds", "Time from ready to dispatched.", PROMPT
        )
        self.ended = make.counter(
            "schedd_runs_ended",
            "Attempts with an accepted result, and runs that ended or changed state without one.",
            "state",
            "reason",
        )
        self.start_lateness = make.histogram(
            "schedd_run_start_lateness_seconds",
            "Time from due to the start of the handler.",
            PROMPT,
        )
        self.duration = make.histogram(
            "schedd_run_duration_seconds", "Duration of one attempt.", LONG, "state"
        )
        self.stale = make.counter(
            "schedd_stale_results", "Stale results, rejected because of a greater token."
        )
