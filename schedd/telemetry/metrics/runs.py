"""What became of instants, attempts and runs."""

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
"""Why instants are missed: each is there from the beginning on, at 0."""


class RunMetrics:
    """From due to ended."""

    def __init__(self, make: Maker) -> None:
        self.fired = make.counter("schedd_runs_fired", "Runs inserted by their schedule.")
        self.folded = make.counter(
            "schedd_runs_folded", "Rows that account for instants that didn't run."
        )
        self.missed = make.counter(
            "schedd_instants_missed", "Instants for which nothing runs any more.", "reason"
        )
        for reason in MISSED_FOR:
            self.missed.labels(reason.value)
        self.dead_letters = make.counter("schedd_dead_letters", "Runs that failed for good.")
        self.fire_lateness = make.histogram(
            "schedd_fire_lateness_seconds", "From due to inserted; early is 0.", PROMPT
        )
        self.assigned = make.counter("schedd_runs_assigned", "Runs handed out to workers.")
        self.wait = make.histogram("schedd_run_wait_seconds", "From ready to handed out.", PROMPT)
        self.ended = make.counter(
            "schedd_runs_ended",
            "Attempts whose result was accepted, and runs that ended or moved on without one.",
            "state",
            "reason",
        )
        self.start_lateness = make.histogram(
            "schedd_run_start_lateness_seconds", "From due to the start of the handler.", PROMPT
        )
        self.duration = make.histogram(
            "schedd_run_duration_seconds", "Of one attempt, start to end.", LONG, "state"
        )
        self.stale = make.counter("schedd_stale_results", "Results refused for a greater token.")
