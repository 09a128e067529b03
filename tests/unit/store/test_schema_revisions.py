"""The steps of the schema, as far as they can be judged without a database."""

from __future__ import annotations

from itertools import pairwise

from schedd.store.schema import migrate, revisions

FIRST = 100
"""The number of the first step: versions before 0.1.0 had 0001 to 0027."""


def test_the_steps_follow_each_other_and_have_their_numbers() -> None:
    numbers = [step.revision for step in migrate.steps()]

    assert numbers == [f"{FIRST + n:04}" for n in range(len(numbers))]
    assert numbers == sorted(revisions.known()), "their files are named by them"
    assert not revisions.known() & revisions.UNRELEASED


def test_each_step_names_its_code_versions_and_never_readmits_older_code() -> None:
    numbers = [step.revision for step in migrate.steps()]
    named = [(step.revision, step.module.compatible_from) for step in migrate.steps()]

    assert all(since in numbers[: numbers.index(step) + 1] for step, since in named)
    assert all(earlier <= later for (_, earlier), (_, later) in pairwise(named))
