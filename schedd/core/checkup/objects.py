"""Check the result store: reachability."""

from collections.abc import Iterator

from schedd.core.checkup.facts import Facts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    check = CheckSubject("results", "store")
    if facts.results_away:
        yield check.warn(
            facts.results_away,
            "whole logs and large results can't be read, and expired ones can't be deleted",
            "check results.url of this member; workers must use the same URL",
        )
    else:
        yield check.ok("reachable")
