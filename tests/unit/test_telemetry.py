"""Events as metrics and as lines of log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import get_args
from uuid import uuid4

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from schedd.core.events import (
    AssignedRuns,
    Braked,
    DeadLettered,
    Deleted,
    Ended,
    Event,
    Fired,
    GreaterTokenSeen,
    Missed,
    NeverStarted,
    NotificationsExpired,
    NotificationsWait,
    Notified,
    Refused,
    ResultStoreAway,
    RunsRescued,
    ShardsLost,
    StaleResult,
    Waiting,
    WorkerCame,
    WorkerWent,
)
from schedd.core.ids import IncarnationId, RunId, ShardId, Token
from schedd.core.lifecycle import Reason, State
from schedd.core.notifications import Way
from schedd.telemetry import SEEN, Telemetry
from support.web import ToldCluster

MS = timedelta(milliseconds=1)
INCARNATION = IncarnationId(uuid4())
RUN = RunId(uuid4())

EVENTS: list[Event] = [
    Fired(2, 1, (3 * MS, -5 * MS)),
    AssignedRuns(1, (2 * MS,)),
    Ended(State.FAILED, Reason.EXIT_CODE, 4 * MS, timedelta(seconds=3)),
    StaleResult(RUN, Token(77), "w1"),
    RunsRescued(3, (INCARNATION,)),
    NeverStarted(2),
    Refused("NO_SLOT", "w1"),
    GreaterTokenSeen(RUN, Token(77), Token(99), "w1"),
    WorkerCame("w1", INCARNATION),
    WorkerWent("w1", INCARNATION),
    ShardsLost(frozenset({ShardId(9)}), "fire"),
    Waiting(5, 6, 7, late=2, pooled=1, oldest=timedelta(seconds=4)),
    Missed(Reason.WINDOW, 9),
    DeadLettered(2),
    Braked("ops", "new disks"),
    Notified(Way.EMAIL, ""),
    Notified(Way.WEBHOOK, "HTTP 500", given_up=True),
    NotificationsExpired(Way.COMMAND, 812),
    NotificationsWait(3),
    Deleted(runs=5, logs=2),
    ResultStoreAway(),
]


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(name, labels)


def telemetry_after(*events: Event) -> Telemetry:
    telemetry = Telemetry()
    for event in events:
        telemetry.emit(event)
    return telemetry


def test_every_kind_of_event_is_counted() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event)) == set(SEEN)
    telemetry = telemetry_after(*EVENTS)
    for name, labels, expected in (
        ("schedd_runs_fired_total", {}, 2),
        ("schedd_runs_folded_total", {}, 1),
        ("schedd_greater_tokens_seen_total", {}, 1),
        ("schedd_retention_deleted_total", {"what": "run"}, 5),
        ("schedd_retention_deleted_total", {"what": "log"}, 2),
        ("schedd_result_store_failures_total", {}, 1),
        ("schedd_fire_lateness_seconds_count", {}, 2),
        ("schedd_runs_assigned_total", {}, 1),
        ("schedd_run_wait_seconds_sum", {}, 0.002),
        ("schedd_runs_ended_total", {"state": "FAILED", "reason": "EXIT_CODE"}, 1),
        ("schedd_run_start_lateness_seconds_sum", {}, 0.004),
        ("schedd_run_duration_seconds_sum", {"state": "FAILED"}, 3),
        ("schedd_stale_results_total", {}, 1),
        ("schedd_rescued_runs_total", {}, 3),
        ("schedd_never_started_total", {}, 2),
        ("schedd_refusals_total", {"why": "NO_SLOT"}, 1),
        ("schedd_shards_lost_total", {"step": "fire"}, 1),
        ("schedd_queue_ready", {}, 5),
        ("schedd_instants_missed_total", {"reason": "WINDOW"}, 9),
        ("schedd_instants_missed_total", {"reason": "CATCH_UP_NONE"}, 0),
        ("schedd_dead_letters_total", {}, 2),
        ("schedd_queue_late", {}, 2),
        ("schedd_queue_pooled", {}, 1),
        ("schedd_queue_running", {}, 6),
        ("schedd_timers_held", {}, 7),
        ("schedd_cluster_paused", {}, 1),
        ("schedd_notifications_sent_total", {"way": "email"}, 1),
        ("schedd_notification_tries_failed_total", {"way": "webhook"}, 1),
        ("schedd_notifications_given_up_total", {"way": "webhook"}, 1),
        ("schedd_notifications_given_up_total", {"way": "command"}, 812),
        ("schedd_notifications_waiting", {}, 3),
    ):
        assert value(telemetry, name, **labels) == expected, name


def test_early_counts_as_no_lateness() -> None:
    assert value(telemetry_after(EVENTS[0]), "schedd_fire_lateness_seconds_sum") == 0.003


def test_the_oldest_that_waits_grows_older_whether_or_not_anybody_looks() -> None:
    telemetry = telemetry_after(Waiting(1, 0, 0, oldest=timedelta(seconds=4)))
    first = value(telemetry, "schedd_queue_oldest_seconds")
    assert first is not None
    assert 4 <= first < 60
    assert (value(telemetry, "schedd_queue_oldest_seconds") or 0) > first
    telemetry.emit(Waiting(0, 0, 0))
    assert value(telemetry, "schedd_queue_oldest_seconds") == 0


def test_attached_workers_are_counted_by_incarnation() -> None:
    came = WorkerCame("w1", INCARNATION)
    telemetry = telemetry_after(came, came)
    assert value(telemetry, "schedd_workers_attached") == 1
    telemetry.emit(WorkerWent("w1", INCARNATION))
    assert value(telemetry, "schedd_workers_attached") == 0


def test_a_word_that_nobody_foresaw_makes_no_new_series() -> None:
    telemetry = telemetry_after(Refused("w1 said something long", "w1"), Refused("?", "w2"))
    assert value(telemetry, "schedd_refusals_total", why="other") == 2


def test_a_stale_result_is_told_with_run_token_and_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry_after(StaleResult(RUN, Token(77), "w1"))
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert (line.run_id, line.token, line.worker) == (RUN, 77, "w1")


def test_a_pause_of_the_cluster_is_told_and_shown_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = telemetry_after(Braked("ops", "new disks"))
    assert "paused by ops: new disks" in caplog.text
    telemetry.emit(Braked(None))
    assert value(telemetry, "schedd_cluster_paused") == 0


def test_routine_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        telemetry_after(Fired(1, 0, ()), AssignedRuns(1, ()), Waiting(0, 0, 0))
    assert not caplog.records


def test_who_leads_and_what_is_owned_is_asked_at_each_scrape() -> None:
    telemetry, cluster = Telemetry(), ToldCluster()
    telemetry.observe(cluster, "0.1")
    assert value(telemetry, "schedd_leader") == 1
    assert value(telemetry, "schedd_term") == 7
    assert value(telemetry, "schedd_shards_owned") == 256
    cluster.has_trust = False
    assert value(telemetry, "schedd_leader") == 0, "a leader without trust is none"
    assert value(telemetry, "schedd_shards_owned") == 0
    assert value(telemetry, "schedd_build_info", version="0.1") == 1


def test_names_and_labels_keep_to_the_conventions() -> None:
    telemetry, cluster = telemetry_after(*EVENTS), ToldCluster()
    telemetry.observe(cluster, "0.1")
    ours = [one for one in telemetry.registry.collect() if one.name.startswith("schedd_")]
    assert len(ours) > 20
    for metric in ours:
        assert re.fullmatch(r"schedd(_[a-z]+)+", metric.name)
        assert metric.documentation.endswith(".")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_count"))
        labels = {label for sample in metric.samples for label in sample.labels}
        assert labels <= {"state", "reason", "why", "step", "way", "what", "le", "version"}, (
            metric.name
        )


def test_it_is_served_in_the_form_that_was_asked_for() -> None:
    telemetry = Telemetry()
    _, plain = telemetry.exposition("*/*")
    _, open_metrics = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    assert plain.startswith("text/plain")
    assert open_metrics.startswith("application/openmetrics-text")


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=1.0.0"])
def test_who_scrapes_a_thousand_times_is_answered_from_one(accept: str) -> None:
    telemetry, collected = Telemetry(), 0

    class Counting(Collector):
        def collect(self) -> Iterable[Metric]:
            nonlocal collected
            collected += 1
            return []

    telemetry.registry.register(Counting())
    collected = 0
    answers = {telemetry.scraped(accept) for _ in range(1000)}
    assert collected <= 2  # a moment may pass meanwhile
    assert {each for _, each in answers} == {telemetry.exposition(accept)[1]}


def test_whatever_version_a_caller_makes_up_there_are_two_forms() -> None:
    """One was kept for each; and of some the library raises."""
    telemetry = Telemetry()
    versions = ["0.0.1", "1.0.0", "x", *(f"{n}.0.0" for n in range(2, 50))]
    kinds = ("text/plain", "application/openmetrics-text", "Application/OpenMetrics-Text", "*/*")
    told = {telemetry.scraped(f"{kind}; version={each}")[1] for kind in kinds for each in versions}
    assert len(told) == len(telemetry._scraped._made) == 2
