"""Overlap policies, as SQL statements and the owner's loops share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.overlap import BUFFERS, LINED_UP, REPLACES, limit_of, policy_of
from support.runs import run

JOB = Definition(1, "default")


@pytest.mark.parametrize("policy", sorted(Overlap))
def test_one_run_at_once_except_for_allow_with_its_limit(policy: Overlap) -> None:
    several = replace(JOB, overlap=policy, overlap_limit=3)
    assert limit_of(several) == (3 if policy is Overlap.ALLOW else 1)
    assert limit_of(replace(JOB, overlap=Overlap.ALLOW)) == 0, "any number"


def test_a_run_uses_the_policy_of_its_trigger_or_else_of_its_job() -> None:
    job = replace(JOB, overlap=Overlap.BUFFER_ONE)
    assert policy_of(run(1), job) is Overlap.BUFFER_ONE
    assert policy_of(run(1, overlap=Overlap.ALLOW), job) is Overlap.ALLOW


def test_each_policy_skips_allows_or_queues_runs() -> None:
    assert BUFFERS.keys() | REPLACES == LINED_UP == set(Overlap) - {Overlap.SKIP, Overlap.ALLOW}
