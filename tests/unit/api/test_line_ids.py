"""The number of a job's line: equal for jobs whose runs need the same, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from schedd.core.dispatch.placement import Need, need_of
from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT, PACED, needs_of
from schedd.core.ids import Id, JobId
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import common_pb2, job_pb2
from support.runs import run

Change = Callable[[job_pb2.Job], object]


def job(*changes: Change) -> job_pb2.Job:
    made = job_pb2.Job()
    made.shell.argv.append("true")
    for change in changes:
        change(made)
    return made


def need(made: job_pb2.Job, namespace: str = "default") -> Need:
    definition = JobDefinition.requested(made, JobId(Id.from_int(1)), namespace)
    return need_of(definition.parsed, run(1))


def gpu(*names: str) -> Change:
    return lambda made: made.require.add(key="gpu", any_of=names)


DIFFERENT: list[Change] = [
    lambda made: None,
    lambda made: setattr(made.http, "url", "https://example.com"),
    lambda made: setattr(made.python, "handler", "a"),
    lambda made: setattr(made.python, "handler", "b"),
    lambda made: setattr(made.plugin, "executor", "a"),
    lambda made: setattr(made.plugin, "executor", "b"),
    lambda made: setattr(made, "slots", 2),
    lambda made: setattr(made, "pool", "p"),
    gpu("a100"),
    gpu("a100", "h100"),
    lambda made: made.require.add(key="disk", any_of=["ssd"]),
    lambda made: setattr(made, "placement", job_pb2.PLACEMENT_BROADCAST),
]
ALIKE: list[Change] = [
    lambda made: setattr(made, "slots", 1),
    lambda made: made.cron.append("0 9 * * *"),
    lambda made: setattr(made, "priority", common_pb2.PRIORITY_HIGH),
    lambda made: setattr(made, "placement", job_pb2.PLACEMENT_PACK),
    lambda made: made.prefer.add(key="gpu", any_of=["a100"]),
]


def test_different_needs_have_different_numbers() -> None:
    made = [job(change) for change in DIFFERENT]
    for one, other in combinations(made, 2):
        assert need(one) != need(other)
        assert job_codec.line_id(one, "default") != job_codec.line_id(other, "default")


@pytest.mark.parametrize("change", ALIKE)
def test_equal_needs_have_the_same_number(change: Change) -> None:
    assert need(job(change)) == need(job())
    assert job_codec.line_id(job(change), "default") == job_codec.line_id(job(), "default")


def test_pools_belong_to_their_namespaces() -> None:
    pooled = job(lambda made: setattr(made, "pool", "p"))
    assert need(pooled, "a") != need(pooled, "b")
    assert job_codec.line_id(pooled, "a") != job_codec.line_id(pooled, "b")


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        (lambda made: made.start_deadline.FromSeconds(5), HURRIED),
        (lambda made: made.run_timeout.FromSeconds(5), HURRIED),
        (lambda made: setattr(made.catch_up, "policy", job_pb2.CatchUp.POLICY_ALL), PACED),
        (lambda made: setattr(made.on_late, "webhook", "https://example.com"), LATE_ALERT),
    ],
)
def test_a_flag_is_separate_from_the_needs(change: Change, flag: int) -> None:
    plain, changed = job_codec.line_id(job(), "d"), job_codec.line_id(job(change), "d")
    assert changed == plain | flag
    assert needs_of(changed) == needs_of(plain) == plain
