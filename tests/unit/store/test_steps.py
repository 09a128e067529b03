"""The steps of the schema, as far as they can be judged without a database."""

from __future__ import annotations

from itertools import pairwise

from schedd.store.schema import migrate, revisions

FIRST = "0004"
"""The first step that names the oldest revision whose code works on it."""


def test_the_steps_are_one_line_and_bear_their_numbers() -> None:
    numbers = [step.revision for step in migrate.steps()]

    assert numbers == [f"{n:04}" for n in range(1, len(numbers) + 1)]
    assert numbers == sorted(revisions.known()), "their files are named by them"


def test_each_step_names_whose_code_works_on_it_and_none_lets_older_code_in_again() -> None:
    numbers = [step.revision for step in migrate.steps()]
    named = [
        (step.revision, step.module.compatible_from)
        for step in migrate.steps()
        if step.revision >= FIRST
    ]

    assert named[0] == (FIRST, FIRST)
    assert all(since in numbers[: numbers.index(step) + 1] for step, since in named)
    assert all(earlier <= later for (_, earlier), (_, later) in pairwise(named))
