"""Placement: which worker gets a run."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from schedd.core.dispatch.placement import (
    NOTHING,
    PlacementCriteria,
    SlotOffer,
    Unable,
    able,
    need_of,
    skill_of,
)
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import Id, IncarnationId, JobId
from schedd.core.jobs.definition import Definition, Match, Placement, matches_text
from schedd.core.runs.model import Incarnation
from support.runs import run, worker

JOB = JobId(Id.from_int(1))
PROBE = Definition(1, "default", action="shell")
ANY = run(1)
SHELL = need_of(PROBE, ANY)
GPU = Match("gpu", ("a100", "h100"))
NEAR = Match("region", ("eu",))


def labelled(number: int, labels: Mapping[str, str], slots: int = 8) -> Incarnation:
    one = worker(slots=slots)
    named = f"worker-{number}"
    return replace(one, id=IncarnationId(Id.from_int(number)), worker=named, labels=dict(labels))


def offers(*workers: tuple[Mapping[str, str], int]) -> list[SlotOffer]:
    """Return offers of workers with these labels, each with so many granted slots."""
    return [
        SlotOffer(labelled(number, labels), slots)
        for number, (labels, slots) in enumerate(workers, 1)
    ]


def chosen(definition: Definition, of: list[SlotOffer], job: JobId = JOB) -> int | None:
    offer = SlotIndex(of).choose(job, definition, need_of(definition, ANY), 0.0)
    return None if offer is None else offer.id.number


def test_a_worker_matches_if_it_has_a_value_of_each_required_label() -> None:
    need = replace(SHELL, require=(GPU, NEAR))
    assert able(labelled(1, {"gpu": "h100", "region": "eu", "more": "x"}), need)
    assert not able(labelled(1, {"gpu": "v100", "region": "eu"}), need)
    assert not able(labelled(1, {"gpu": "a100"}), need)
    assert matches_text(need.require) == "gpu in (a100, h100) and region=eu"


def test_a_worker_for_one_namespace_gets_no_run_of_another() -> None:
    own = replace(labelled(1, {}), namespaces=frozenset({"billing"}))
    of_all = [SlotOffer(own, 8), SlotOffer(labelled(2, {}), 2)]
    billing = replace(PROBE, namespace="billing")
    assert able(own, need_of(billing, ANY))
    assert not able(own, SHELL)
    assert chosen(billing, of_all) == 1
    assert chosen(PROBE, of_all) == 2
    assert chosen(PROBE, of_all[:1]) is None


def test_preferred_workers_are_chosen_but_not_waited_for() -> None:
    job = replace(PROBE, prefer=(GPU, NEAR))
    both, one, none = {"gpu": "a100", "region": "eu"}, {"gpu": "a100"}, {"region": "us"}
    assert chosen(job, offers((none, 8), (one, 4), (both, 1))) == 3
    assert chosen(job, offers((none, 8), (one, 4), (both, 0))) == 2
    assert chosen(job, offers((none, 8), (both, 0))) == 1
    assert chosen(job, offers((both, 0))) is None


@pytest.mark.parametrize(("placement", "first"), [(Placement.SPREAD, 2), (Placement.PACK, 3)])
def test_spread_takes_the_worker_with_the_most_slots_and_pack_the_one_with_the_fewest(
    placement: Placement, first: int
) -> None:
    job = replace(PROBE, placement=placement, slots=2)
    of = offers(({}, 4), ({}, 7), ({}, 2), ({}, 1))
    assert chosen(job, of) == first


def test_a_sticky_job_goes_to_the_same_worker_until_it_is_full_or_lost() -> None:
    sticky = replace(PROBE, placement=Placement.STICKY)
    jobs = [JobId(Id.from_int(number)) for number in range(1, 201)]
    four = [({}, 2)] * 4
    at_home = {job: chosen(sticky, offers(*four), job) for job in jobs}
    assert {list(at_home.values()).count(number) > 20 for number in (1, 2, 3, 4)} == {True}

    without = {job: chosen(sticky, offers(*four[:3]), job) for job in jobs}
    moved = {job for job in jobs if without[job] != at_home[job]}
    assert moved == {job for job in jobs if at_home[job] == 4}

    full = offers(({}, 0), *four[1:])
    assert all(chosen(sticky, full, job) in {2, 3, 4} for job in jobs)


def test_a_worker_that_rejected_a_job_is_asked_again_only_without_an_alternative() -> None:
    for placement in (Placement.SPREAD, Placement.PACK, Placement.STICKY):
        job = replace(PROBE, placement=placement, generation=3)
        old, new = offers(({}, 8), ({}, 1))
        for offer, other in ((old, new), (new, old)):
            offer.unable = {JOB: Unable(3)}
            assert chosen(job, [old, new]) == other.id.number
            assert chosen(job, [offer]) == offer.id.number
            assert chosen(replace(job, generation=4), [offer]) == offer.id.number
            offer.unable = {}
    old.unable = {JOB: Unable(3)}
    assert chosen(replace(PROBE, generation=4), [old, new]) == 1, "it was edited since"


def test_only_workers_with_slots_for_the_rank_are_asked() -> None:
    [offer] = offers(({}, 2))
    held = replace(offer, last=5.0)
    assert SlotIndex([held]).free(SHELL, 5.0)
    assert not SlotIndex([held]).free(SHELL, 5.1)
    assert not SlotIndex([offer]).free(replace(SHELL, slots=3), 0.0)
    assert not SlotIndex([offer]).free(replace(SHELL, require=(GPU,)), 0.0)


def test_runs_of_equal_needs_share_one_queue() -> None:
    definition = replace(PROBE, require=(GPU,), prefer=(NEAR,), placement=Placement.PACK)
    other = replace(PROBE, require=(GPU,))
    assert need_of(definition, ANY) == need_of(other, ANY)
    assert need_of(definition, ANY) != need_of(replace(other, require=()), ANY)


def test_a_broadcast_is_placed_nowhere_and_its_children_on_their_own_workers() -> None:
    definition = replace(PROBE, placement=Placement.BROADCAST)
    [first, second] = offers(({}, 2), ({}, 8))
    whole = need_of(definition, ANY)
    assert whole.each
    assert not able(first.incarnation, whole)
    child = run(2, parent=ANY.key.run_id, target="worker-1")
    mine = need_of(definition, child)
    assert not mine.each
    assert [able(one.incarnation, mine) for one in (first, second)] == [True, False]
    wide = need_of(replace(definition, slots=3), child)
    assert SlotIndex([first, second]).choose(JOB, definition, mine, 0.0) is first
    assert SlotIndex([second]).choose(JOB, definition, mine, 0.0) is None
    assert SlotIndex([first]).choose(JOB, definition, wide, 0.0) is None
    assert SlotIndex([first, second]).choose(JOB, definition, whole, 0.0) is None
    edited = need_of(PROBE, child)
    assert edited.worker == "worker-1", "whatever its job says by now"


def test_workers_differ_only_by_labels_that_runs_require() -> None:
    one, other = (labelled(number, {"host": f"h{number}", "gpu": "a100"}) for number in (1, 2))
    for asked in (
        NOTHING,
        PlacementCriteria(frozenset({"gpu", "region"})),
        PlacementCriteria(names=frozenset({"w"})),
    ):
        assert skill_of(one, asked) == skill_of(other, asked)
    for asked in (
        PlacementCriteria(frozenset({"host"})),
        PlacementCriteria(names=frozenset({"worker-1"})),
    ):
        assert skill_of(one, asked) != skill_of(other, asked)
