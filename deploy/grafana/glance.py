"""Dashboard with the state of the cluster, for people on call."""

from __future__ import annotations

from panels import GREEN, RED, YELLOW, Json, Query, Row, dashboard, heat, lines, number

NONE = ((None, GREEN), (1, RED))
"""Red from 1 on."""
SOME = ((None, RED), (1, GREEN))
"""Red below 1."""


def quantile(share: float, metric: str, by: str = "le") -> str:
    """Return a quantile of a histogram, over all members."""
    rate = f"rate({metric}_bucket[$__rate_interval])"
    return f"histogram_quantile({share}, sum by ({by}) ({rate}))"


def per_second(metric: str, by: str = "") -> str:
    """Return the rate of a counter, over all members."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}[$__rate_interval]))"


WELL = Row(
    "Health",
    [
        number(
            "Alerts",
            "Active alerts of deploy/prometheus/alerts.yml.",
            "short",
            'count(ALERTS{alertname=~"Schedd.*", alertstate="firing"}) or vector(0)',
            NONE,
        ),
        number(
            "Not ready",
            "Members that reject calls. The member's /readyz shows the reason.",
            "short",
            "count(schedd_ready == 0) or vector(0)",
            NONE,
        ),
        number(
            "Leaders",
            "Number of leaders, which must be 1. Without a leader, no member takes over the"
            " shards of another.",
            "short",
            "sum(schedd_leader) or vector(0)",
            ((None, RED), (1, GREEN), (2, RED)),
        ),
        number(
            "Shards without owner",
            "Shards without an owner, of 256. The jobs of these shards don't run.",
            "short",
            "256 - (sum(schedd_shards_owned) or vector(0))",
            NONE,
        ),
        number("Members", "Members registered in etcd.", "short", "max(schedd_members)", SOME),
        number("Workers", "Workers registered in etcd.", "short", "max(schedd_workers)", SOME),
        number(
            "Missed in the last hour",
            "Scheduled times that didn't run, without the times that an edit or a deletion"
            " removed.",
            "short",
            'sum(increase(schedd_scheduled_times_missed_total{reason!~"EDITED|DELETED"}[1h]))',
            NONE,
        ),
        number(
            "Dead letters",
            "Runs that failed for good and wait for an operator's decision. The count ends"
            " at 10,000.",
            "short",
            "max(schedd_dead_letters_waiting)",
            ((None, GREEN), (1, YELLOW), (1000, RED)),
        ),
        number(
            "Paused",
            "1 if the cluster is paused: no job runs.",
            "short",
            "max(schedd_cluster_paused)",
            ((None, GREEN), (1, YELLOW)),
        ),
    ],
)

ON_TIME = Row(
    "Lateness",
    [
        lines(
            "Start lateness",
            "Time from the due time of a run to the start of its handler.",
            "s",
            Query(quantile(0.5, "schedd_run_start_lateness_seconds"), "p50"),
            Query(quantile(0.95, "schedd_run_start_lateness_seconds"), "p95"),
            Query(quantile(0.99, "schedd_run_start_lateness_seconds"), "p99"),
            steps=((None, GREEN), (5, RED)),
        ),
        heat(
            "Start lateness, distribution",
            "Number of started runs, by lateness.",
            "s",
            "sum by (le) (increase(schedd_run_start_lateness_seconds_bucket[$__rate_interval]))",
        ),
        lines(
            "Lateness by stage",
            "99th percentile. Due to fired depends on members and the database; ready to"
            " dispatched depends on"
            " free slots and pools.",
            "s",
            Query(quantile(0.99, "schedd_fire_lateness_seconds"), "due to fired"),
            Query(quantile(0.99, "schedd_run_wait_seconds"), "ready to dispatched"),
        ),
    ],
)

WORK = Row(
    "Throughput",
    [
        lines(
            "Runs per second",
            "Runs that schedules created, and runs sent to workers (with triggers, submits"
            " and retries).",
            "ops",
            Query(per_second("schedd_runs_fired_total"), "fired by schedules"),
            Query(per_second("schedd_runs_assigned_total"), "dispatched"),
        ),
        lines(
            "Ends per second, by state",
            "Attempts that ended, and runs that ended without an attempt.",
            "ops",
            Query(per_second("schedd_runs_ended_total", "state"), "{{state}}"),
            stacked=True,
        ),
        lines(
            "Failures per second, by reason",
            "Attempts that failed, per second, by reason.",
            "ops",
            Query(
                per_second('schedd_runs_ended_total{state=~"FAILED|RETRYING"}', "reason"),
                "{{reason}}",
            ),
            stacked=True,
        ),
        lines(
            "Duration of attempts",
            "95th percentile. The threshold of the alert is three times the value of the"
            " last 7 days.",
            "s",
            Query("schedd:run_duration_seconds:p95_15m", "now"),
            Query("3 * schedd:run_duration_seconds:p95_7d", "alert threshold"),
        ),
        lines(
            "Missed scheduled times, by reason",
            "Scheduled times that didn't run, per 5 minutes, by reason.",
            "short",
            Query(
                "sum by (reason) (increase(schedd_scheduled_times_missed_total[5m]))", "{{reason}}"
            ),
            stacked=True,
        ),
        lines(
            "Dead letters",
            "Dead letters that wait for a decision, and new dead letters of the last 15 minutes.",
            "short",
            Query("max(schedd_dead_letters_waiting)", "waiting"),
            Query("sum(increase(schedd_dead_letters_total[15m]))", "new"),
        ),
    ],
)

QUEUE = Row(
    "Queue",
    [
        lines(
            "Waiting runs",
            "All waiting runs; of these, runs that wait for their pool, and late runs that"
            " wait for the"
            " catch-up limit.",
            "short",
            Query("sum(schedd_queue_ready)", "all"),
            Query("sum(schedd_queue_in_pools)", "in pools"),
            Query("sum(schedd_queue_catch_up)", "catch-up"),
        ),
        lines(
            "Oldest waiting run",
            "Age of the oldest waiting run. The alert is sent if the age is above 5 minutes"
            " for 5 minutes.",
            "s",
            Query("max(schedd_queue_oldest_seconds)", "oldest"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots",
            "Slots of all workers, and used slots. A run uses one slot or more.",
            "short",
            Query("sum(workerd_slots)", "all"),
            Query("sum(workerd_slots_used)", "used"),
        ),
        lines(
            "Catch-up",
            "Timers whose due time has passed, and remaining runs of backfills.",
            "short",
            Query("sum(schedd_catch_up_timers)", "overdue timers"),
            Query("sum(schedd_backfill_runs_left)", "backfills"),
        ),
        lines(
            "Catch-up delay",
            "Time since the due time of the oldest overdue timer, also while the database is"
            " unavailable.",
            "s",
            Query("max(schedd_catch_up_behind_seconds)", "oldest"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots for the jobs of pools",
            "Slots of workers that can run every job of the pool. If 0, the pool's runs wait.",
            "short",
            Query("min by (pool) (schedd_pool_slots)", "{{pool}}"),
        ),
    ],
)

GROUND = Row(
    "Dependencies and leases",
    [
        lines(
            "Remaining lease",
            "Least share of the lease that remained when it was renewed. At 0, the lease is lost.",
            "percentunit",
            Query("schedd_lease_margin_seconds / schedd_lease_ttl_seconds", "{{instance}}"),
            Query("workerd_lease_margin_seconds / workerd_lease_ttl_seconds", "{{instance}}"),
            steps=((None, RED), (0.2, GREEN)),
        ),
        lines(
            "PostgreSQL and etcd",
            "99th percentile of the duration of calls.",
            "s",
            Query(quantile(0.99, "schedd_database_call_seconds"), "PostgreSQL"),
            Query(quantile(0.99, "schedd_etcd_call_seconds"), "etcd"),
        ),
        lines(
            "Oldest transaction",
            "Age of the oldest open transaction in the database. Vacuum can't remove newer"
            " dead rows.",
            "s",
            Query("max(schedd_database_oldest_transaction_seconds)", "open for"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Leader changes",
            "Changes of the leader in the last 15 minutes. The alert is sent above 4.",
            "short",
            Query("max(changes(schedd_term[15m]))", "terms"),
            steps=((None, GREEN), (5, RED)),
        ),
        lines(
            "Stale results and lost workers",
            "Per 5 minutes: results that were rejected because the run has another attempt,"
            " and runs that lost"
            " workers didn't finish.",
            "short",
            Query("sum(increase(schedd_stale_results_total[5m]))", "stale results"),
            Query("sum(increase(schedd_runs_rescued_total[5m]))", "runs of lost workers"),
        ),
        lines(
            "Event loops",
            "Longest recent time in which a member's event loop didn't respond. If it"
            " reaches the TTL, the"
            " member loses its lease.",
            "s",
            Query("schedd_event_loop_longest_block_seconds", "{{instance}}"),
            steps=((None, GREEN), (1, RED)),
        ),
    ],
)


def glance() -> Json:
    """Return the dashboard."""
    return dashboard(
        "schedd-glance",
        "schedd: the cluster at a glance",
        "The state of the cluster, most important first, for people on call.",
        [WELL, ON_TIME, WORK, QUEUE, GROUND],
    )
