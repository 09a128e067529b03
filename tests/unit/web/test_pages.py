"""The overview from values: what it says, and that it keeps to its own rules."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import pytest

from schedd.api.cluster import cluster as cluster_calls
from schedd.api.runs.waiting_runs import WaitSummary
from schedd.core.checkup.facts import FullWorkers
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import Counts, SlotHolder
from schedd.core.timers.cluster_pauses import Pause
from schedd.web import formatting, templating
from schedd.web.pages.cluster.overview import Glance, MissedRuns, Stored, glance
from schedd.web.pages.site import TABS
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from support.web import StubCluster, member

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


def owned_by(*names: str) -> list[cluster_pb.Shard]:
    return [cluster_pb.Shard(shard=at, owner=names[at % len(names)]) for at in range(256)]


def stored(**changes: object) -> Stored:
    workers = [cluster_pb.Worker(name="w1", slots=4, running=1)]
    return replace(Stored(shards=owned_by("m1", "m2"), workers=workers, read_at=NOW), **changes)


def seen(
    state: Stored | None = None, *, trusted: bool = True, away: bool = False, duplicate: str = ""
) -> Glance:
    cluster = StubCluster(members=[member("m1"), member("m2")])
    return glance(
        state or stored(),
        cluster.view(),
        cluster.tenure,
        trusted=trusted,
        away=away,
        now=NOW,
        duplicate=duplicate,
    )


def html(found: Glance) -> str:
    return templating.render("overview_body.html", seen=found, now=NOW, link=templating.linker(""))


def run(state: State, **fields: object) -> run_pb2.Run:
    made = run_pb2.Run(
        run_id="r", job="etl", state=common_pb2.RunState.Value(f"RUN_STATE_{state}"), **fields
    )
    made.due_at.FromDatetime(NOW)
    return made


def test_a_healthy_cluster_is_shown_in_three_words() -> None:
    assert seen().problems == ()
    assert "No problems known to this member." in html(seen())


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (seen(away=True), "PostgreSQL is unavailable"),
        (seen(trusted=False), "lease in etcd isn't trusted"),
        (seen(trusted=False, duplicate="tenure x at h2:7420"), "name (tenure x at h2:7420)"),
        (seen(stored(workers=())), "no worker"),
        (seen(stored(shards=[*stored().shards[:255]])), "1 of 256 shards have no live owner"),
        (seen(stored(shards=owned_by("m1", "gone"))), "128 of 256 shards have no live owner"),
        (seen(stored(pause=Pause(NOW, "ops", "disks"))), "the cluster is paused by ops since"),
    ],
)
def test_each_problem_is_named_and_the_page_turns_red(found: Glance, said: str) -> None:
    assert said in found.problems[0]
    assert 'class="verdict bad"' in html(found)


def test_a_dependency_that_rejects_writes_is_on_the_banner_with_since_when_and_why() -> None:
    cause, remedy = "PostgreSQL's disk is full", "Make room on PostgreSQL's disk"
    failure = DependencyFailure(Dependency.POSTGRESQL, "disk_full", cause, remedy, NOW)
    view = StubCluster(members=[member("m1")]).view()
    found = glance(
        stored(shards=owned_by("m1")),
        view,
        None,
        trusted=True,
        away=False,
        now=NOW,
        failures=[failure],
    )
    said = f"{cause}, since 2026-03-04T12:00:05Z: {remedy}"
    assert said in found.problems
    assert said in unescape(html(found))
    assert 'class="verdict bad"' in html(found)


def test_a_cluster_without_a_leader_is_reported() -> None:
    cluster = StubCluster(leader=None)
    found = glance(stored(), cluster.view(), cluster.tenure, trusted=True, away=False, now=NOW)
    assert "the cluster has no leader" in found.problems


def test_the_page_shows_problems_in_the_words_of_the_call() -> None:
    """`GetCluster`, and so `schedctl cluster status`; a pause it has in fields of its own."""
    view = StubCluster(leader=None, members=[member("m1")]).view()
    state = stored(shards=owned_by("m1", "gone"), workers=(), pause=Pause(NOW, "ops"))
    page = glance(state, view, None, trusted=False, away=False, now=NOW).problems
    call = cluster_calls.problems(view, trusted=False, owned=128, workers=0)
    assert len(call) == 4
    assert [*page[1:]] == call
    assert page[0].startswith("the cluster is paused")


def test_old_data_is_shown_with_its_age_and_its_problems_with_their_time() -> None:
    full = cluster_pb.Worker(name="w2", slots=4, refusal_reason="spool rejects writes")
    found = seen(stored(workers=[full], read_at=NOW - timedelta(minutes=9, seconds=3)), away=True)
    assert found.problems == (
        "PostgreSQL is unavailable; the page shows data from 11:51:02 UTC, 9 min ago",
    )
    assert found.concerns == ("at 11:51:02 UTC: worker w2 takes no new runs: spool rejects writes",)


def test_before_the_first_reading_nothing_is_claimed_to_be_missing() -> None:
    found = seen(Stored(), away=True)
    assert found.problems == ("PostgreSQL is unavailable; no data has been read yet",)
    assert "been read yet" in html(found)


def test_a_value_never_read_is_shown_without_a_figure() -> None:
    page = html(seen(Stored(), away=True))
    assert not re.search(r'class="(figure|n)">\s*\d', page)
    assert len(re.findall(r'class="figure"><span [^>]*title="not read yet">–<', page)) == 6
    assert "no run has started" not in page
    assert "no workers attached" not in page
    assert '<p class="figure">0</p>' in html(seen())


def test_problems_are_shown_worst_first_and_the_cluster_isnt_called_healthy() -> None:
    draining = cluster_pb.Worker(name="w1", slots=4, state=cluster_pb.Worker.STATE_DRAINING)
    found = seen(
        stored(
            counts=Counts(0, 5, 0, 0, dead_letters=3),
            missed=MissedRuns((NOW, NOW)),
            workers=[draining],
            waits=WaitSummary(5, (("default", "etl"),), since=NOW - timedelta(hours=1)),
        )
    )
    assert found.problems == ()
    assert found.concerns == (
        "2 runs were missed in the last day",
        "3 dead letters are open",
        "5 runs wait, but every worker is draining",
    )
    page = html(found)
    assert "No problems" not in page
    assert 'class="verdict wary"' in page
    assert "<h1>2 runs were missed in the last day.</h1>" in page


def test_past_problems_are_shown_after_present_delays() -> None:
    page = html(seen(stored(workers=(), counts=Counts(0, 0, 0, 0, dead_letters=1))))
    assert 'class="verdict bad"' in page
    assert page.index("No worker is running") < page.index("1 dead letter is open")


def test_a_worker_that_takes_no_new_runs_is_on_the_page_with_the_reason() -> None:
    full = cluster_pb.Worker(
        name="w1", slots=4, refusal_reason="spool rejects writes: No space left"
    )
    found = seen(stored(workers=[full]))
    assert found.concerns == ("worker w1 takes no new runs: spool rejects writes: No space left",)
    assert "No problems" not in html(found)


def test_a_run_missed_days_ago_is_not_reported_as_a_problem() -> None:
    assert "No problems known to this member." in html(
        seen(stored(missed=MissedRuns((NOW - timedelta(days=2),))))
    )


@pytest.mark.parametrize(
    ("missed", "concerns"),
    [
        (MissedRuns((NOW,)), "a run was missed in the last day"),
        (MissedRuns((NOW,), NOW - timedelta(days=2)), "a run was missed in the last day"),
        (
            MissedRuns((NOW, NOW), NOW - timedelta(minutes=2)),
            "2 runs were missed since 11:58:05; older runs weren't searched",
        ),
        (MissedRuns((NOW,) * 100, NOW), "100 runs or more were missed in the last day"),
    ],
)
def test_the_period_of_missed_runs_is_shown(missed: MissedRuns, concerns: str) -> None:
    assert seen(stored(missed=missed)).concerns == (concerns,)


HANG = SlotHolder("w2", "default", "hang", 16, NOW - timedelta(minutes=30))
FULL = FullWorkers(
    (("default", "z1"),), NOW - timedelta(minutes=27), ("w2",), 16, 16, holders=(HANG,)
)
WAITED = "waited 27 min: 16 of 16 slots of w2 are in use"
UNMATCHED = "runs wait without a matching worker"


@pytest.mark.parametrize(
    ("waits", "concerns"),
    [
        (
            WaitSummary(1, (("a", "etl"),)),
            ["1 run waits without a matching worker: etl"],
        ),
        (
            WaitSummary(17, tuple(("a", name) for name in "vwxyz")),
            [f"at least 17 {UNMATCHED}: v, w, x and 2 more"],
        ),
        (
            WaitSummary(2, (("a", "etl"), ("b", "bill"))).visible_in("a"),
            [f"at least 2 {UNMATCHED}: etl and jobs of other namespaces"],
        ),
        (
            WaitSummary(1, (("b", "bill"),)).visible_in("a"),
            ["1 run waits without a matching worker: jobs of other namespaces"],
        ),
        (
            WaitSummary(held_up=WaitSummary(3, (("a", "etl"),))),
            ["at least 3 runs wait for workers that take no new runs now: etl"],
        ),
        (
            WaitSummary(since=NOW - timedelta(minutes=27)),
            ["a run has waited 27 min for a slot, its pool or higher priorities"],
        ),
        (WaitSummary(since=NOW - timedelta(minutes=4)), []),
        (
            WaitSummary(since=FULL.since, full=(FULL,)),
            [f"runs of z1 have {WAITED}; 16 runs of hang run there, the first since 11:30:05 UTC"],
        ),
        (
            WaitSummary(full=(FULL.visible_in("a"),)),
            [f"runs of jobs of other namespaces have {WAITED}"],
        ),
    ],
)
def test_runs_that_wait_for_long_or_for_ever_make_a_cluster_unhealthy(
    waits: WaitSummary, concerns: list[str]
) -> None:
    assert list(seen(stored(waits=waits)).concerns) == concerns


def test_a_cluster_pause_is_the_only_reason_shown_for_waiting_runs() -> None:
    assert (
        seen(stored(waits=WaitSummary(3, (("a", "etl"),)), pause=Pause(NOW, "ops"))).concerns == ()
    )


def test_members_show_their_share_of_the_shards_and_the_leader() -> None:
    first, second = seen().members
    assert (first.name, first.shards, first.leads, first.here) == ("m1", 128, True, True)
    assert (second.name, second.shards, second.leads, second.here) == ("m2", 128, False, False)
    assert [colour for colour, _ in seen().shards] == [0, 1]


def test_the_figures_are_of_first_starts_those_of_retried_runs_too() -> None:
    runs = [
        run(State.SUCCEEDED, lateness_ms=4),
        run(State.SUCCEEDED, lateness_ms=1500),
        run(State.SUCCEEDED, lateness_ms=10),
        run(State.FAILED, lateness_ms=100, attempt=2),
        run(State.PENDING),
    ]
    found = seen(stored(runs=runs))
    assert (formatting.span(found.typical), formatting.span(found.worst)) == ("10 ms", "1.5 s")
    assert [round(bar.height, 2) for bar in found.strip] == [0, 0.5, 0.25, 0.79, 0.15]


def test_every_state_has_its_symbol_word_and_colour() -> None:
    page = html(seen(stored(runs=[run(state) for state in State])))
    symbols = (templating.HERE / "templates/symbols.html").read_text()
    css = (templating.STATIC / "schedd.css").read_text()
    for look in formatting.LOOKS.values():
        assert f"</svg>{look.word}</span>" in page
        assert f'id="m-{look.style}"' in symbols
        assert f".s-{look.style} " in css


def test_jobs_are_in_the_order_of_their_next_run() -> None:
    def job(name: str, seconds: int | None) -> job_pb2.Job:
        made = job_pb2.Job(name=name, on_demand=True)
        if seconds is not None:
            made.next_run_at.seconds = seconds
        return made

    found = seen(stored(jobs=[job("never", None), job("later", 900), job("soon", 5)]))
    assert [line.name for line in found.jobs] == ["soon", "later", "never"]


def test_names_are_escaped() -> None:
    page = html(seen(stored(runs=[run(State.FAILED, worker="<script>alert(1)</script>")])))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_page_keeps_to_its_own_policy() -> None:
    body = html(seen(stored(runs=[run(State.RUNNING)])))
    page = templating.render(
        "frame.html",
        body=body,
        title="Overview",
        tabs=TABS,
        tab="Overview",
        here="m1",
        actor="user/ann",
        link=templating.linker(""),
        query={},
        live="/live/",
        flash=None,
        back="",
    )
    assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:|<style", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    assert set(re.findall(r"(?:src|href)=\"(https?://[^/\"]+)", page)) <= {"http://m2:7421"}


def test_all_assets_together_are_small() -> None:
    sizes = [path.stat().st_size for path in Path(templating.STATIC).iterdir()]
    assert sum(sizes) < 40_000


def test_slots_of_a_worker_without_heartbeats_count_neither_as_free_nor_as_taken() -> None:
    workers = [
        cluster_pb.Worker(name="w1", slots=4, running=1),
        cluster_pb.Worker(name="w2", slots=16, heartbeats_missing=True),
    ]
    found = seen(stored(workers=workers))
    assert (found.busy, found.slots) == (1, 4)
    page = html(found)
    assert "1 <small>of 4" in page
    assert "of 16" not in page
