"""S11: what was committed is what the database has at the end, in every table that checks stand on.

    rows when recording began + commits in their order = the final rows

A difference is a COMMIT that was lost, a change that no commit made, or a record that lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from faults.checker import rows
from faults.checker.tables import Table
from faults.checker.verdict import Violation
from faults.checker.world import World
from faults.history import Row


@dataclass(frozen=True, slots=True)
class Kept:
    """A table: the columns of its key, how a row is read, and its history."""

    key: tuple[str, ...]
    of: Callable[[Row], Any]
    table: Callable[[World], Table[Any]]


KEPT: Mapping[str, Kept] = {
    "runs": Kept(("run_id",), rows.Run.of, lambda world: world.runs),
    "jobs": Kept(("job_id",), rows.Job.of, lambda world: world.jobs),
    "timers": Kept(("job_id",), rows.Timer.of, lambda world: world.timers),
    "shards": Kept(("id",), rows.Shard.of, lambda world: world.shards),
    "shard_log": Kept(("seq",), rows.Taking.of, lambda world: world.takings),
    "term": Kept((), rows.Term.of, lambda world: world.terms),
    "tenures": Kept(("id",), rows.Tenure.of, lambda world: world.tenures),
    "incarnations": Kept(("id",), rows.Incarnation.of, lambda world: world.incarnations),
    "cluster": Kept((), rows.Cluster.of, lambda world: world.cluster),
}
OF_JOBS = ("jobs", "timers")
"""Of these the dump has the rows of the run's own jobs alone."""


def not_durable(world: World) -> Iterator[Violation]:
    """Rows that were committed and that the database no longer has as they were, or has twice."""
    for name, kept in KEPT.items():
        dumped = world.history.database.get(name)
        if dumped is None:
            continue
        keyed = [(tuple(str(row[column]) for column in kept.key), row) for row in dumped]
        counts, table = Counter(key for key, _ in keyed), kept.table(world).rows
        found = {key: kept.of(row) for key, row in keyed if key in table}
        for key, steps in table.items():
            if name in OF_JOBS and key[0] not in world.lives.by_job:
                continue
            last = steps[-1]
            if found.get(key) != _without_spec(last.after):
                what = f"{name} {' '.join(key)}: the database has other than what was committed"
                evidence = (f"{last.where}: {last.after}", f"at the end: {found.get(key)}")
                yield Violation("S11", what, evidence)
        for key, count in counts.items():
            if count > 1:
                what = f"{name} {' '.join(key)} stands in {count} rows of the database"
                yield Violation("S11", what)


def _without_spec(row: Any) -> Any:
    """As a dump has it, which leaves what is large out."""
    return replace(row, spec=None) if isinstance(row, rows.Job) else row
