"""Drafts of assignments: what dispatch has chosen, until the assign statement accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import DispatchedBatch, Draft, Incarnation, LiveRun, Terms
from schedd.core.runs.overlap import limit_of
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

Handed: TypeAlias = tuple[DispatchedBatch, Sequence[CachedDefinition]]
"""A batch, with the definition of each run. They have one text, and so one message
(`DefinitionTexts`).
"""
Chosen: TypeAlias = tuple[LiveRun, CachedDefinition, "SlotOffer | BroadcastTargets"]


@dataclass(frozen=True, slots=True)
class BroadcastTargets:
    """Names of the workers that a broadcast is for."""

    workers: tuple[str, ...]


def drafts_of(chosen: Iterable[Chosen]) -> list[Draft]:
    """Return the drafts of these assignments. Definitions of one text, and one worker, have the
    same terms.
    """
    found: dict[object, Terms] = {}
    drafts: list[Draft] = []
    for run, known, to in chosen:
        of = id(known.text), id(to), run.parent is None
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
