"""Jobs of manifests are stored parents first, whatever their order in the file."""

from __future__ import annotations

import pytest

from schedctl.failure import CommandFailure
from schedctl.manifests.job_steps import parents_first, without_new_parents
from schedctl.manifests.manifests import Manifest
from schedproto.v1 import job_pb2


def manifest(name: str, *after: str, namespace: str = "") -> Manifest[job_pb2.Job]:
    job = job_pb2.Job(name=name, namespace=namespace)
    if after:
        job.after.jobs.extend(after)
    return Manifest(f"jobs.yaml:{name}", job)


def names(found: list[Manifest[job_pb2.Job]]) -> list[str]:
    return [one.spec.name for one in found]


def test_parents_precede_their_children_and_other_jobs_keep_their_place() -> None:
    found = [manifest("z"), manifest("c", "b", "old"), manifest("b", "a"), manifest("a")]
    assert names(parents_first(found, "default")) == ["z", "a", "b", "c"]


def test_a_job_of_another_namespace_is_not_a_parent() -> None:
    found = [manifest("b", "a"), manifest("a", "b", namespace="other")]
    assert names(parents_first(found, "default")) == ["b", "a"]


def test_a_circle_is_refused_with_its_path() -> None:
    found = [manifest("a", "c"), manifest("b", "a"), manifest("c", "b")]
    with pytest.raises(CommandFailure, match="closes the cycle a → b → c → a"):
        parents_first(found, "default")
    with pytest.raises(CommandFailure, match="closes the cycle a → a"):
        parents_first([manifest("a", "a")], "default")


def test_a_long_chain_is_put_in_order() -> None:
    found = [manifest(f"j{n}", f"j{n - 1}") for n in range(3000, 0, -1)]
    assert names(parents_first(found, "default"))[0] == "j1"


def test_a_child_is_checked_without_parents_that_are_created_before_it() -> None:
    job = manifest("c", "a", "b").spec
    assert [*without_new_parents(job, {("default", "a")}, "default").after.jobs] == ["b"]
    bare = without_new_parents(job, {("default", "a"), ("default", "b")}, "default")
    assert bare.on_demand
    assert not bare.HasField("after")
    assert without_new_parents(job, {("other", "a")}, "default") is job
