"""Workers as this member has them, and assignments that didn't come to anything."""

from __future__ import annotations

from schedd.core.ids import IncarnationId
from schedd.telemetry.metrics.registry import Maker


class WorkerMetricSet:
    """Who is attached; what they refuse, what never started, what was lost with them."""

    def __init__(self, make: Maker) -> None:
        self.attached: set[IncarnationId] = set()
        make.gauge("schedd_workers_attached", "Workers attached to this member.").set_function(
            lambda: len(self.attached)
        )
        self.slots = make.gauge(
            "schedd_slots", "Slots of the workers attached to this member that take work."
        )
        self.free = make.gauge(
            "schedd_slots_free", "Of these: those that nothing holds, as the workers said last."
        )
        self.rescued = make.counter("schedd_rescued_runs", "Runs of lost workers that moved on.")
        self.never_started = make.counter(
            "schedd_never_started", "Assignments that their live worker never started."
        )
        self.refusals = make.counter(
            "schedd_refusals", "Assignments that workers didn't take.", "why"
        )
        self.greater_tokens = make.counter(
            "schedd_greater_tokens_seen",
            "Refusals by a worker that has seen a greater token than this cluster knows of.",
        )
        self.shards_lost = make.counter(
            "schedd_shards_lost", "Shards found to be another's, by the step that found it.", "step"
        )
        self.shards_moved = make.counter(
            "schedd_shards_moved", "Shards handed over: taken by this member, or let go.", "what"
        )
        for what in ("taken", "released"):
            self.shards_moved.labels(what)
