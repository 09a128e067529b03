"""Drafts of assignments: what dispatch has chosen, until the assign statement accepts it."""

from __future__ import annotations

from typing import TypeAlias

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.runs.broadcast import own
from schedd.core.runs.deadlines import START_WITHIN
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
    definition = own(run, known.definition)
    one = None if isinstance(to, BroadcastTargets) else to.incarnation
    return Draft(
        key=run.key,
        job_id=run.job_id,
        shard=run.shard,
        generation=definition.generation,
        worker=one.worker if one else "",
        incarnation=one.id if one else None,
        overlap=definition.overlap,
        overlap_limit=limit_of(definition),
        said=run.overlap,
        start_by_after=START_WITHIN,
        counted=definition.max_runs > 0,
        pool=definition.pool,
        parent=run.parent,
        targets=to.workers if isinstance(to, BroadcastTargets) else (),
    )
