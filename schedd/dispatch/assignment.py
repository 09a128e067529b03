"""Drafts of assignments: what dispatch has chosen, until the assign statement accepts it."""

from __future__ import annotations

from typing import TypeAlias

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.runs.model import Draft, LiveRun
from schedd.core.runs.overlap import limit_of
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

Chosen: TypeAlias = tuple[LiveRun, CachedDefinition, "SlotOffer | BroadcastTargets"]


@dataclass(frozen=True, slots=True)
class BroadcastTargets:
    """Names of the workers that a broadcast is for."""

    workers: tuple[str, ...]


def draft_of(run: LiveRun, known: CachedDefinition, to: SlotOffer | BroadcastTargets) -> Draft:
    """Return the draft of a run's assignment."""
    definition = known.definition
    counted = definition.max_runs > 0 and run.parent is None
    of = (run, run.key, run.shard, definition.generation)
    overlap = (definition.overlap, limit_of(definition), counted, definition.pool)
    if isinstance(to, BroadcastTargets):
        return Draft(*of, "", None, *overlap, to.workers)
    return Draft(*of, to.incarnation.worker, to.incarnation.id, *overlap)
