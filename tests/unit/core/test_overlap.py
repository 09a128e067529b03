"""What both statements and the owner's loops agree on about overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.overlap import BUFFERS, LINED_UP, REPLACES, limit_of, policy_of
from support.runs import run

JOB = Definition(run(1).job_id, 1, "default", "j")


@pytest.mark.parametrize("policy", sorted(Overlap))
def test_one_run_at_once_but_for_allow_which_says_how_many(policy: Overlap) -> None:
    several = replace(JOB, overlap=policy, overlap_limit=3)
    assert limit_of(several) == (3 if policy is Overlap.ALLOW else 1)
    assert limit_of(replace(JOB, overlap=Overlap.ALLOW)) == 0, "any number"


def test_a_run_goes_by_its_triggers_word_and_else_by_its_jobs() -> None:
    job = replace(JOB, overlap=Overlap.BUFFER_ONE)
    assert policy_of(run(1), job) is Overlap.BUFFER_ONE
    assert policy_of(run(1, overlap=Overlap.ALLOW), job) is Overlap.ALLOW


def test_each_policy_lets_go_or_end_by_itself_or_is_lined_up() -> None:
    assert BUFFERS.keys() | REPLACES == LINED_UP == set(Overlap) - {Overlap.SKIP, Overlap.ALLOW}
