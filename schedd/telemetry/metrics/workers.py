"""Workers of this member, and assignments without a result."""

from __future__ import annotations

from schedd.core.ids import IncarnationId
from schedd.telemetry.metrics.registry import Maker


class WorkerMetricSet:
    """Attached workers; rejected assignments, runs that never started, runs of lost workers."""

    def __init__(self, make: Maker) -> None:
        self.attached: set[IncarnationId] = set()
        make.gauge("schedd_workers_attached", "Workers attached to this member.").set_function(
            lambda: len(self.attached)
        )
        self.slots = make.gauge("schedd_slots", "Slots of attached workers that accept runs.")
        self.free = make.gauge(
            "schedd_slots_free", "Free slots among these, by the workers' last heartbeats."
        )
        self.rescued = make.counter(
            "schedd_rescued_runs",
            "Runs of lost workers that were rescued: started again or failed.",
        )
        self.never_started = make.counter(
            "schedd_never_started", "Assignments that a live worker never started."
        )
        self.refusals = make.counter("schedd_refusals", "Assignments that workers rejected.", "why")
        self.greater_tokens = make.counter(
            "schedd_greater_tokens_seen",
            "Rejections by a worker that has seen a greater token than this cluster has issued.",
        )
        self.shards_lost = make.counter(
            "schedd_shards_lost",
            "Shards found to be owned by another member, by the step that found it.",
            "step",
        )
        self.shards_moved = make.counter(
            "schedd_shards_moved", "Shards taken or released by this member.", "what"
        )
        for what in ("taken", "released"):
            self.shards_moved.labels(what)
