"""Examine the cluster and return findings (`schedctl cluster doctor`). Pure.

    facts (read by the adapters) ──one rule per area──→ findings: ok, warn or bad

Invariants
- Every check returns a finding, also when all is well: the reader sees what was checked.
- A failed read is a finding too, and doesn't stop the other checks.
- A finding that isn't ok says why it matters and what to do.
"""

from collections.abc import Iterator

from schedd.core.checkup import cluster, database, etcd, members, work, workers
from schedd.core.checkup.facts import Facts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    """Return all findings, area by area."""
    yield from etcd.examine(facts)
    yield from database.examine(facts)
    yield CheckSubject("results", "store", healthy="reachable").warn_if(
        facts.results_away,
        facts.results_away,
        "whole logs and large results can't be read, and expired ones can't be deleted",
        "check results.url of this member; workers must use the same URL",
    )
    yield from cluster.examine(facts)
    yield from members.examine(facts)
    yield from workers.examine(facts)
    yield from work.examine(facts)
