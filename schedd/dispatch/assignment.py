"""Drafts of assignments: what dispatch has chosen, until the assign statement accepts it."""

from __future__ import annotations

from typing import TypeAlias

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.runs.model import Assigned, Draft, LiveRun
from schedd.core.runs.overlap import limit_of
from schedd.core.timers.pre_dispatch import start_not_before
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

Alike: TypeAlias = tuple[object, ...]
"""Assignments with equal values of this kind are sent in one batch."""
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
    limited = definition.run_timeout is not None
    if isinstance(to, BroadcastTargets):
        return Draft(*of, "", None, *overlap, to.workers, limited)
    return Draft(*of, to.incarnation.worker, to.incarnation.id, *overlap, (), limited)


def alike(assigned: Assigned, known: CachedDefinition) -> Alike:
    """Return what the assignments of a batch have in common. Their definitions have one text, and
    so one message (`DefinitionTexts`); only name, run, token and scheduled time may differ.
    """
    run, definition = assigned.run, known.definition
    alone = assigned.payload is not None or definition.run_timeout is not None
    return (
        run.incarnation,
        id(known.spec),
        definition.namespace,
        definition.generation,
        run.attempt,
        run.start_by,
        start_not_before(run),
        run.key.run_id if alone else None,
    )
