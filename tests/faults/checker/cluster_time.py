"""A history in which the cluster's clock was moved, converted to that clock from end to end.

The database dates its rows and commits by cluster time already. Probes, users, the nemesis and the
harness go by the host's clock; `meta.legs` says by how many seconds the cluster's was ahead of it
from when on. After this no rule of the checker need know that there were two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from faults.history import (
    ClientEvent,
    Definition,
    History,
    Nemesis,
    ProbeEvent,
    Resource,
    Stall,
)

Dated = TypeVar("Dated", ClientEvent, Definition, Nemesis, ProbeEvent, Resource, Stall)


def in_cluster_time(history: History) -> History:
    """Return the history on one clock; the same history if no clock was moved."""
    legs = history.meta.legs
    if not legs:
        return history
    begins = [begin for begin, _ in legs]

    def moved(at: float) -> float:
        return at + legs[max(0, bisect_right(begins, at) - 1)][1]

    meta = history.meta
    return replace(
        history,
        meta=replace(
            meta,
            began=moved(meta.began),
            ended=moved(meta.ended),
            quiet=tuple((moved(begin), moved(end)) for begin, end in meta.quiet),
        ),
        jobs=_each(history.jobs, moved),
        clients=_each(history.clients, moved),
        probes=_each(history.probes, moved),
        nemesis=_each(history.nemesis, moved),
        resources=_each(history.resources, moved),
        stalls=_each(history.stalls, moved),
    )


def _each(records: Iterable[Dated], moved: Callable[[float], float]) -> tuple[Dated, ...]:
    return tuple(replace(record, at=moved(record.at)) for record in records)
