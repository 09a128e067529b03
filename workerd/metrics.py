"""What this worker tells Prometheus."""

from __future__ import annotations

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """All series of one worker, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        self.slots = Gauge("workerd_slots", "Slots in all.", registry=add)
        self.free = Gauge("workerd_slots_free", "Slots that nothing holds.", registry=add)
        self.used = Gauge("workerd_slots_used", "Slots held, armed or running.", registry=add)
        self.spool = Gauge(
            "workerd_spool_results", "Results that no member has stored yet.", registry=add
        )
        self.members = Gauge("workerd_members_attached", "Members attached to.", registry=add)
        self.trusted = Gauge("workerd_trusted", "1 while the lease surely lives.", registry=add)
        self.starts = Counter("workerd_starts", "Attempts started.", ["action"], registry=add)
        self.outcomes = Counter(
            "workerd_outcomes", "Attempts ended.", ["outcome", "reason"], registry=add
        )
        self.refusals = Counter("workerd_refusals", "Assignments not taken.", ["why"], registry=add)
        self.settled = Counter(
            "workerd_results_settled", "Results acknowledged.", ["verdict"], registry=add
        )
        self.kept = Counter(
            "workerd_kept",
            "Logs and results that were to go to the result store.",
            ["what", "outcome"],
            registry=add,
        )

    @functools.cache  # noqa: B019 - lives as long as the process; finding a child costs a lock
    def started(self, action: str) -> Counter:
        """Attempts of one kind of action."""
        return self.starts.labels(action)

    @functools.cache  # noqa: B019 - as above
    def ended(self, outcome: str, reason: str) -> Counter:
        """Attempts that ended one way."""
        return self.outcomes.labels(outcome, reason)

    @functools.cache  # noqa: B019 - as above
    def answered(self, verdict: str) -> Counter:
        """Results that were answered one way."""
        return self.settled.labels(verdict)
