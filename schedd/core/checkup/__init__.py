"""What a person would look at when something seems wrong: facts in, findings out. Pure.

    facts (read by the adapters) ──one rule an area──→ findings: ok, warn or bad

Invariants
- Each check gives a finding, a good one too: whoever reads them sees what was looked at.
- What couldn't be read is itself a finding, and stops no other check.
- A finding that isn't ok says why it matters and what to do.
"""

from collections.abc import Iterator

from schedd.core.checkup import cluster, database, etcd, members, objects, work, workers
from schedd.core.checkup.facts import Facts
from schedd.core.checkup.finding import Finding


def examine(facts: Facts) -> Iterator[Finding]:
    """Every finding, area by area."""
    yield from etcd.examine(facts)
    yield from database.examine(facts)
    yield from objects.examine(facts)
    yield from cluster.examine(facts)
    yield from members.examine(facts)
    yield from workers.examine(facts)
    yield from work.examine(facts)
