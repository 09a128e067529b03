"""The result store: does it answer?"""

from collections.abc import Iterator

from schedd.core.checkup.facts import Facts
from schedd.core.checkup.finding import CheckSubject, Finding


def examine(facts: Facts) -> Iterator[Finding]:
    """Whether whole logs and large results can be read, and removed."""
    check = CheckSubject("results", "store")
    if facts.results_away:
        yield check.warn(
            facts.results_away,
            "whole logs and large results can't be read, nor removed when they are too old",
            "see results.url of this member; workers must name the same",
        )
    else:
        yield check.ok("answers")
