"""Drafts of assignments: what dispatch has chosen, until the assign statement accepts it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.jobs.definition import Definition
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.model import (
    SMALL_PAYLOAD,
    Assigned,
    Draft,
    Incarnation,
    LiveRun,
    Terms,
)
from schedd.core.runs.overlap import limit_of
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

Alike: TypeAlias = tuple[object, ...]
"""Assignments with equal values of this kind are sent in one batch."""
Chosen: TypeAlias = tuple[LiveRun, CachedDefinition, "SlotOffer | BroadcastTargets"]


@dataclass(frozen=True, slots=True)
class BroadcastTargets:
    """Names of the workers that a broadcast is for."""

    workers: tuple[str, ...]


def drafts_of(chosen: Iterable[Chosen]) -> list[Draft]:
    """Return the drafts of these assignments. Definitions of one text and generation, and one
    worker, have the same terms.
    """
    found: dict[object, Terms] = {}
    drafts: list[Draft] = []
    for run, known, to in chosen:
        of = id(known.spec), known.definition.generation, id(to), run.parent is None
        terms = found.get(of)
        if terms is None:
            terms = found[of] = _terms(run, known, to)
        drafts.append(Draft(run, run.shard, terms))
    return drafts


def _terms(run: LiveRun, known: CachedDefinition, to: SlotOffer | BroadcastTargets) -> Terms:
    child = run.parent is not None
    if isinstance(to, BroadcastTargets):
        return terms_of(known.definition, None, to.workers, child=child)
    return terms_of(known.definition, to.incarnation, child=child)


def terms_of(
    definition: Definition,
    worker: Incarnation | None,
    targets: tuple[str, ...] = (),
    *,
    child: bool = False,
) -> Terms:
    """Return the terms of runs of this definition that go to a worker. `targets`: the workers of a
    broadcast, which goes to none. `child`: the runs are children of one.
    """
    return Terms(
        definition.generation,
        worker.worker if worker else "",
        worker.id if worker else None,
        definition.overlap,
        limit_of(definition),
        definition.max_runs > 0 and not child,
        definition.pool,
        targets,
        definition.run_timeout is not None,
    )


def alike(assigned: Assigned, known: CachedDefinition) -> Alike:
    """Return what the assignments of a batch have in common. Their definitions have one text, and
    so one message (`DefinitionTexts`). Name, run, token, scheduled time and small payload differ.
    """
    run, definition = assigned.run, known.definition
    payload = assigned.payload
    large = payload is not None and len(payload) > SMALL_PAYLOAD
    alone = large or definition.run_timeout is not None
    return (
        run.incarnation,
        id(known.spec),
        definition.namespace,
        definition.generation,
        run.attempt,
        run.start_by,
        run.start_by is not None and run.start_by - START_WITHIN == run.ready_at,
        payload is None,
        run.key.run_id if alone else None,
    )
