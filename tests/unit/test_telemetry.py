"""Events as metrics and as log lines."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from schedd.core.cluster.dependency import Dependency, DependencyFailure, Unready
from schedd.core.cluster.statistics import Behind, PoolStats
from schedd.core.events import (
    AssignedRuns,
    AssignmentRejected,
    AssignmentsNotStarted,
    AttemptEnded,
    Called,
    ClusterPauseChanged,
    ClusterWatched,
    DatabaseSeen,
    DeadLettered,
    DeadRun,
    Deleted,
    EndedUnreported,
    Event,
    GreaterTokenSeen,
    NotificationsExpired,
    NotificationsWait,
    Notified,
    QueueStatsRead,
    ResultStoreAway,
    RunsMissed,
    RunsRescued,
    RunsSucceeded,
    Service,
    ShardsLost,
    ShardsMoved,
    StaleResult,
    TimersFired,
    Waiting,
    WorkerAttached,
    WorkerDetached,
)
from schedd.core.ids import IncarnationId, JobId, RunId, ShardId, Token, new_id
from schedd.core.jobs.notifications import NotificationChannel
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.pools import PoolKey
from schedd.telemetry.metrics import MOST_POOLS, VITALS_FRESH, BatchHistogram
from schedd.telemetry.recorder import SEEN, Telemetry
from schedkit.clock import boottime
from support.web import StubCluster

MS = timedelta(milliseconds=1)
INCARNATION = IncarnationId(new_id())
RUN, OTHER, THIRD = (RunId(new_id()) for _ in range(3))
DEAD = DeadRun(RUN, JobId(new_id()), Reason.EXIT_CODE, 3)

EVENTS: list[Event] = [
    TimersFired(2, 1, (3 * MS, -5 * MS)),
    AssignedRuns([0.002]),
    AttemptEnded(State.FAILED, Reason.EXIT_CODE, 4 * MS, timedelta(seconds=3)),
    RunsSucceeded([0.5, -0.25], [1.5, 2.5]),
    StaleResult(RUN, Token(77), "w1"),
    RunsRescued((RUN, OTHER, THIRD), (INCARNATION,)),
    AssignmentsNotStarted((RUN, OTHER)),
    AssignmentRejected("NO_SLOT", "w1", RUN, Token(77)),
    GreaterTokenSeen(RUN, Token(77), Token(99), "w1"),
    WorkerAttached("w1", INCARNATION),
    WorkerDetached("w1", INCARNATION),
    ShardsLost(frozenset({ShardId(9)}), "fire"),
    Waiting(5, 6, 7, catch_up=2, in_pools=1, oldest=timedelta(seconds=4)),
    RunsMissed(Reason.WINDOW, 9),
    DeadLettered((DEAD, DEAD)),
    ClusterPauseChanged("ops", "new disks"),
    Notified(NotificationChannel.EMAIL, ""),
    Notified(NotificationChannel.WEBHOOK, "HTTP 500", abandoned=True),
    NotificationsExpired(NotificationChannel.COMMAND, 812),
    NotificationsWait(3),
    Deleted(runs=5, logs=2),
    ResultStoreAway(),
    EndedUnreported(State.MISSED, Reason.START_DEADLINE, 4),
    ShardsMoved(128, 3),
    QueueStatsRead((), 11, timedelta(seconds=90), 40),
    DatabaseSeen(timedelta(seconds=301), 12),
    ClusterWatched(lost_members=1, lost_workers=2, stuck=3),
    Called(Service.DATABASE, "owner.fire", 0.003, failed=False),
    Called(Service.ETCD, "Txn", 0.5, failed=True),
]


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(name, labels)


def telemetry_after(*events: Event) -> Telemetry:
    telemetry = Telemetry()
    for event in events:
        telemetry.emit(event)
    return telemetry


def test_every_kind_of_event_is_counted() -> None:
    assert {type(event) for event in EVENTS} == set(SEEN)
    assert {one.__name__ for one in SEEN} == {one.__name__ for one in Event.__subclasses__()}
    telemetry = telemetry_after(*EVENTS)
    for name, labels, expected in (
        ("schedd_runs_fired_total", {}, 2),
        ("schedd_runs_merged_total", {}, 1),
        ("schedd_greater_tokens_seen_total", {}, 1),
        ("schedd_retention_deleted_total", {"what": "run"}, 5),
        ("schedd_retention_deleted_total", {"what": "log"}, 2),
        ("schedd_result_store_failures_total", {}, 1),
        ("schedd_fire_lateness_seconds_count", {}, 2),
        ("schedd_runs_assigned_total", {}, 1),
        ("schedd_run_wait_seconds_sum", {}, 0.002),
        ("schedd_runs_ended_total", {"state": "FAILED", "reason": "EXIT_CODE"}, 1),
        ("schedd_runs_ended_total", {"state": "SUCCEEDED", "reason": ""}, 2),
        ("schedd_run_start_lateness_seconds_sum", {}, 0.504),
        ("schedd_run_start_lateness_seconds_count", {}, 3),
        ("schedd_run_duration_seconds_sum", {"state": "FAILED"}, 3),
        ("schedd_run_duration_seconds_sum", {"state": "SUCCEEDED"}, 4),
        ("schedd_stale_results_total", {}, 1),
        ("schedd_runs_rescued_total", {}, 3),
        ("schedd_assignments_not_started_total", {}, 2),
        ("schedd_assignments_rejected_total", {"reason": "NO_SLOT"}, 1),
        ("schedd_shards_lost_total", {"step": "fire"}, 1),
        ("schedd_queue_ready", {}, 5),
        ("schedd_scheduled_times_missed_total", {"reason": "WINDOW"}, 9),
        ("schedd_scheduled_times_missed_total", {"reason": "CATCH_UP_NONE"}, 0),
        ("schedd_dead_letters_total", {}, 2),
        ("schedd_lost_members", {}, 1),
        ("schedd_lost_workers", {}, 2),
        ("schedd_stuck_jobs", {}, 3),
        ("schedd_queue_catch_up", {}, 2),
        ("schedd_queue_in_pools", {}, 1),
        ("schedd_queue_running", {}, 6),
        ("schedd_timers_loaded", {}, 7),
        ("schedd_cluster_paused", {}, 1),
        ("schedd_notifications_sent_total", {"channel": "email"}, 1),
        ("schedd_notification_attempts_failed_total", {"channel": "webhook"}, 1),
        ("schedd_notifications_abandoned_total", {"channel": "webhook"}, 1),
        ("schedd_notifications_abandoned_total", {"channel": "command"}, 812),
        ("schedd_notifications_waiting", {}, 3),
        ("schedd_runs_ended_total", {"state": "MISSED", "reason": "START_DEADLINE"}, 4),
        ("schedd_shards_moved_total", {"what": "taken"}, 128),
        ("schedd_shards_moved_total", {"what": "released"}, 3),
        ("schedd_catch_up_timers", {}, 11),
        ("schedd_catch_up_behind_seconds", {}, 90),
        ("schedd_backfill_runs_left", {}, 40),
        ("schedd_database_oldest_transaction_seconds", {}, 301),
        ("schedd_dead_letters_waiting", {}, 12),
        ("schedd_database_call_seconds_sum", {"call": "owner.fire"}, 0.003),
        ("schedd_database_calls_failed_total", {"call": "owner.fire"}, 0),
        ("schedd_etcd_call_seconds_count", {"call": "Txn"}, 1),
        ("schedd_etcd_calls_failed_total", {"call": "Txn"}, 1),
    ):
        assert value(telemetry, name, **labels) == expected, name


@pytest.mark.parametrize(
    "values",
    [(), (0.0,), (-3.0, 0.1, 0.1000001, 5.0, 5.0, 99.0), tuple(n / 7 for n in range(100, -30, -1))],
)
def test_values_that_are_observed_at_once_count_as_one_by_one(values: tuple[float, ...]) -> None:
    registry = CollectorRegistry()
    both = [
        BatchHistogram(name, "text", registry=registry, buckets=(0.1, 1.0, 5.0)) for name in "ab"
    ]
    both[0].observe_all(iter(values))
    for one in values:
        both[1].observe(max(0.0, one))

    def samples(name: str) -> dict[tuple[str, str], float]:
        [metric] = [metric for metric in registry.collect() if metric.name == name]
        return {(s.name[1:], s.labels.get("le", "")): s.value for s in metric.samples}

    assert samples("a") == pytest.approx(samples("b"))


def survey(number: int, **changes: Any) -> PoolStats:
    plain = PoolStats(PoolKey(f"default/p{number}"), 8, None, number, 0, paused=False)
    return replace(plain, **changes)


def test_pools_are_exported_by_name_without_the_limits_they_lack() -> None:
    telemetry = telemetry_after(
        QueueStatsRead((survey(1, limit=2, waiting=5), survey(2, slots=0, paused=True)))
    )
    one, other = {"pool": "default/p1"}, {"pool": "default/p2"}
    assert value(telemetry, "schedd_pool_limit", **one) == 2
    assert value(telemetry, "schedd_pool_limit", **other) is None
    assert value(telemetry, "schedd_pool_waiting", **one) == 5
    assert value(telemetry, "schedd_pool_running", **other) == 2
    assert value(telemetry, "schedd_pool_slots", **other) == 0
    assert value(telemetry, "schedd_pool_paused", **other) == 1
    telemetry.emit(QueueStatsRead())
    assert value(telemetry, "schedd_pool_slots", **one) is None, "they are another's now"


def test_the_busiest_of_many_pools_have_a_name_and_the_rest_share_one() -> None:
    many = [survey(number) for number in range(MOST_POOLS + 3)]
    telemetry = telemetry_after(QueueStatsRead((*many[:1], replace(many[1], slots=0), *many[2:])))
    pools = [
        sample.labels["pool"]
        for metric in telemetry.registry.collect()
        for sample in metric.samples
        if sample.name == "schedd_pool_running"
    ]
    assert len(pools) == MOST_POOLS + 1
    assert "default/p2" not in pools
    assert value(telemetry, "schedd_pool_running", pool="other") == 0 + 1 + 2
    assert value(telemetry, "schedd_pool_slots", pool="other") == 0, "the worst of them"


def test_figures_that_the_leader_read_long_ago_arent_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telemetry = telemetry_after(DatabaseSeen(timedelta(0), 5))
    assert value(telemetry, "schedd_dead_letters_waiting") == 5
    later = monotonic() + VITALS_FRESH
    monkeypatch.setattr("schedd.telemetry.metrics.monotonic", lambda: later)
    assert value(telemetry, "schedd_dead_letters_waiting") is None


def test_lease_margin_and_worker_slots_are_read_at_each_scrape() -> None:
    telemetry, free = Telemetry(), 3
    telemetry.metrics.read("schedd_slots", lambda: 8)
    telemetry.metrics.read("schedd_slots_free", lambda: free)
    assert value(telemetry, "schedd_lease_margin_seconds") is None
    telemetry.metrics.lease_margin.renewed(boottime() + 3, 5.0)
    assert 2 < (value(telemetry, "schedd_lease_margin_seconds") or 0) < 3
    assert value(telemetry, "schedd_lease_ttl_seconds") == 5
    assert value(telemetry, "schedd_slots") == 8
    assert value(telemetry, "schedd_slots_free") == 3
    free = 1
    assert value(telemetry, "schedd_slots_free") == 1


def test_times_missed_by_an_edit_are_counted_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = telemetry_after(RunsMissed(Reason.EDITED, 2), RunsMissed(Reason.WINDOW, 1))
    assert value(telemetry, "schedd_scheduled_times_missed_total", reason="EDITED") == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_early_start_counts_as_no_lateness() -> None:
    assert value(telemetry_after(EVENTS[0]), "schedd_fire_lateness_seconds_sum") == 0.003


def test_the_age_of_the_oldest_waiting_run_grows_between_scrapes() -> None:
    telemetry = telemetry_after(Waiting(1, 0, 0, oldest=timedelta(seconds=4)))
    first = value(telemetry, "schedd_queue_oldest_seconds")
    assert first is not None
    assert 4 <= first < 60
    assert (value(telemetry, "schedd_queue_oldest_seconds") or 0) > first
    telemetry.emit(Waiting(0, 0, 0))
    assert value(telemetry, "schedd_queue_oldest_seconds") == 0


def test_the_backlog_in_memory_is_exported_when_the_rows_cant_be_read() -> None:
    telemetry, held = telemetry_after(QueueStatsRead()), Behind()
    telemetry.metrics.held = lambda: held

    def backlog() -> tuple[float | None, float | None]:
        names = "schedd_catch_up_timers", "schedd_catch_up_behind_seconds"
        return value(telemetry, names[0]), value(telemetry, names[1])

    assert backlog() == (0, 0)
    held = Behind(2, timedelta(seconds=40))
    assert backlog() == (2, 40)
    telemetry.emit(QueueStatsRead((), 11, timedelta(seconds=90)))
    assert backlog() == (11, 90), "memory holds a part"
    telemetry.emit(QueueStatsRead())
    held = Behind()
    assert backlog() == (0, 0)


def test_readiness_and_its_reason_are_read_at_each_scrape() -> None:
    telemetry, why = Telemetry(), dict[Unready, str]()
    telemetry.observe_readiness(lambda: why, tuple)

    def reasons() -> dict[str, float]:
        return {
            sample.labels["reason"]: sample.value
            for metric in telemetry.registry.collect()
            for sample in metric.samples
            if sample.name == "schedd_not_ready_reasons"
        }

    assert value(telemetry, "schedd_ready") == 1
    assert reasons() == dict.fromkeys(map(str, Unready), 0)
    why[Unready.DATABASE] = "PostgreSQL hasn't answered for 9.0 s"
    assert value(telemetry, "schedd_ready") == 0
    assert reasons() == dict.fromkeys(map(str, Unready), 0) | {"database": 1}


def test_a_dependency_that_fails_is_a_metric_with_its_reason() -> None:
    telemetry, failures = Telemetry(), list[DependencyFailure]()
    telemetry.observe_readiness(dict, lambda: failures)

    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert b"schedd_dependency_failure{" not in telemetry.exposition("")[0]
    failures.append(DependencyFailure(Dependency.ETCD, "no_space", "full", "defrag", since))
    assert (
        b'schedd_dependency_failure{dependency="etcd",reason="no_space"} 1.0'
        in (telemetry.exposition("")[0])
    )


def test_attached_workers_are_counted_by_incarnation() -> None:
    came = WorkerAttached("w1", INCARNATION)
    telemetry = telemetry_after(came, came)
    assert value(telemetry, "schedd_workers_attached") == 1
    telemetry.emit(WorkerDetached("w1", INCARNATION))
    assert value(telemetry, "schedd_workers_attached") == 0


def test_an_unforeseen_label_value_makes_no_new_series() -> None:
    telemetry = telemetry_after(
        AssignmentRejected("w1 said something long", "w1", RUN, Token(77)),
        AssignmentRejected("?", "w2", RUN, Token(77)),
    )
    assert value(telemetry, "schedd_assignments_rejected_total", reason="other") == 2


def test_a_stale_result_is_logged_with_run_token_and_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry_after(StaleResult(RUN, Token(77), "w1"))
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert (line.run_id, line.token, line.worker) == (RUN, 77, "w1")


def test_results_of_runs_that_dont_exist_are_counted_and_write_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    several = (StaleResult(RUN, Token(77), "w1", known=False) for _ in range(5))
    assert value(telemetry_after(*several), "schedd_stale_results_total") == 5
    assert caplog.records == []


def test_lines_of_several_runs_name_twenty_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    many = tuple(RunId(new_id()) for _ in range(21))
    telemetry_after(RunsRescued((RUN, OTHER), (INCARNATION,)), AssignmentsNotStarted(many))
    rescued, back = caplog.records
    assert rescued.getMessage() == "2 runs of lost workers start again or failed"
    assert (rescued.run_ids, rescued.incarnations) == (f"{RUN},{OTHER}", str(INCARNATION))
    assert back.getMessage() == "21 dispatched runs didn't start in time: they are dispatched again"
    assert back.run_ids == ",".join(map(str, many[:20]))


def test_attached_and_lost_workers_are_logged_with_their_incarnation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    telemetry_after(WorkerAttached("w1", INCARNATION), WorkerDetached("w1", INCARNATION))
    assert [(line.worker, line.incarnation) for line in caplog.records] == [("w1", INCARNATION)] * 2


def test_a_cluster_pause_is_logged_and_exported_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = telemetry_after(ClusterPauseChanged("ops", "new disks"))
    assert "paused by ops: new disks" in caplog.text
    telemetry.emit(ClusterPauseChanged(None))
    assert value(telemetry, "schedd_cluster_paused") == 0


def test_routine_events_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        telemetry_after(TimersFired(1, 0, ()), AssignedRuns([0.0]), Waiting(0, 0, 0))
    assert not caplog.records


def test_leadership_and_ownership_are_read_at_each_scrape() -> None:
    telemetry, cluster = Telemetry(), StubCluster()
    telemetry.observe(cluster, "0.1")
    assert value(telemetry, "schedd_leader") == 1
    assert value(telemetry, "schedd_term") == 7
    assert value(telemetry, "schedd_shards_owned") == 256
    cluster.has_trust = False
    assert value(telemetry, "schedd_leader") == 0, "a leader without trust is none"
    assert value(telemetry, "schedd_shards_owned") == 0
    assert value(telemetry, "schedd_build_info", version="0.1") == 1


def test_an_untrusted_view_exports_no_leader_and_no_members() -> None:
    telemetry, cluster, away = Telemetry(), StubCluster(), [0.0]
    telemetry.observe_etcd(lambda: away[0])
    telemetry.observe(cluster, "0.1")

    def known() -> list[float | None]:
        names = "schedd_leader_known", "schedd_members", "schedd_shards_assigned"
        return [value(telemetry, name) for name in names]

    assert known() == [1, 1, 256]
    away[0] = 1.0  # while the lease is trusted the view is of a cluster that is still there
    assert known() == [1, 1, 256]
    cluster.has_trust = False
    assert known() == [0, 0, 0]
    away[0] = 0.0  # a member without a tenure still reads the view from etcd
    assert known() == [1, 1, 256]


def test_names_and_labels_keep_to_the_conventions() -> None:
    telemetry, cluster = telemetry_after(*EVENTS), StubCluster()
    telemetry.observe(cluster, "0.1")
    ours = [one for one in telemetry.registry.collect() if one.name.startswith("schedd_")]
    assert len(ours) > 20
    for metric in ours:
        assert re.fullmatch(r"schedd(_[a-z]+)+", metric.name)
        assert metric.documentation.endswith(".")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_count"))
        labels = {label for sample in metric.samples for label in sample.labels}
        assert labels <= {
            "state",
            "reason",
            "kind",
            "step",
            "channel",
            "what",
            "le",
            "version",
            "call",
            "pool",
        }, metric.name


def test_metrics_are_served_in_the_requested_format() -> None:
    telemetry = Telemetry()
    _, plain = telemetry.exposition("*/*")
    _, open_metrics = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    assert plain.startswith("text/plain")
    assert open_metrics.startswith("application/openmetrics-text")


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=1.0.0"])
def test_a_thousand_scrapes_are_answered_from_one_rendering(accept: str) -> None:
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


def test_unknown_format_versions_add_no_cached_formats() -> None:
    """A series was kept for each; and for some the library raises."""
    telemetry = Telemetry()
    versions = ["0.0.1", "1.0.0", "x", *(f"{n}.0.0" for n in range(2, 50))]
    kinds = ("text/plain", "application/openmetrics-text", "Application/OpenMetrics-Text", "*/*")
    types = {telemetry.scraped(f"{kind}; version={each}")[1] for kind in kinds for each in versions}
    assert len(types) == len(telemetry._scraped._made) == 2
