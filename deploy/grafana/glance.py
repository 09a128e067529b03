"""Dashboard of the cluster at a glance, for people on call."""

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
            "Members that reject calls; /readyz shows why.",
            "short",
            "count(schedd_ready == 0) or vector(0)",
            NONE,
        ),
        number(
            "Leaders",
            "Must be 1. Without a leader no shard moves, and due runs may wait.",
            "short",
            "sum(schedd_leader) or vector(0)",
            ((None, RED), (1, GREEN), (2, RED)),
        ),
        number(
            "Shards without owner",
            "Of 256. Their jobs don't run.",
            "short",
            "256 - (sum(schedd_shards_owned) or vector(0))",
            NONE,
        ),
        number("Members", "Registered in etcd.", "short", "max(schedd_members)", SOME),
        number("Workers", "Registered in etcd.", "short", "max(schedd_workers)", SOME),
        number(
            "Missed in the last hour",
            "Scheduled times that didn't run, except those removed by an edit.",
            "short",
            'sum(increase(schedd_scheduled_times_missed_total{reason!~"EDITED|DELETED"}[1h]))',
            NONE,
        ),
        number(
            "Dead letters",
            "Runs that failed for good and wait for a decision, up to 10,000.",
            "short",
            "max(schedd_dead_letters_waiting)",
            ((None, GREEN), (1, YELLOW), (1000, RED)),
        ),
        number(
            "Paused",
            "1: an operator has paused all jobs.",
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
            "From the due time to the start of the handler, end to end.",
            "s",
            Query(quantile(0.5, "schedd_run_start_lateness_seconds"), "p50"),
            Query(quantile(0.95, "schedd_run_start_lateness_seconds"), "p95"),
            Query(quantile(0.99, "schedd_run_start_lateness_seconds"), "p99"),
            steps=((None, GREEN), (5, RED)),
        ),
        heat(
            "Start lateness, distribution",
            "Number of starts by lateness.",
            "s",
            "sum by (le) (increase(schedd_run_start_lateness_seconds_bucket[$__rate_interval]))",
        ),
        lines(
            "Lateness by stage",
            "p99: due to fired (members, database), ready to dispatched (slots, pools).",
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
            "Fired by schedules; dispatched in all, with triggers, submits and retries.",
            "ops",
            Query(per_second("schedd_runs_fired_total"), "fired by schedules"),
            Query(per_second("schedd_runs_assigned_total"), "dispatched"),
        ),
        lines(
            "Ends per second, by state",
            "Attempts that ended, and runs that ended without one.",
            "ops",
            Query(per_second("schedd_runs_ended_total", "state"), "{{state}}"),
            stacked=True,
        ),
        lines(
            "Failures per second, by reason",
            "Attempts that failed.",
            "ops",
            Query(
                per_second('schedd_runs_ended_total{state=~"FAILED|RETRYING"}', "reason"),
                "{{reason}}",
            ),
            stacked=True,
        ),
        lines(
            "Duration of attempts",
            "95th percentile; the alert threshold is three times last week's.",
            "s",
            Query("schedd:run_duration_seconds:p95_15m", "now"),
            Query("3 * schedd:run_duration_seconds:p95_7d", "alert threshold"),
        ),
        lines(
            "Missed, by reason",
            "Scheduled times that didn't run, per 5 minutes.",
            "short",
            Query(
                "sum by (reason) (increase(schedd_scheduled_times_missed_total[5m]))", "{{reason}}"
            ),
            stacked=True,
        ),
        lines(
            "Dead letters",
            "Waiting, and new in the last 15 minutes.",
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
            "For a slot, blocked by their pool, and by the catch-up limit.",
            "short",
            Query("sum(schedd_queue_ready)", "all"),
            Query("sum(schedd_queue_in_pools)", "in pools"),
            Query("sum(schedd_queue_catch_up)", "catch-up"),
        ),
        lines(
            "Oldest waiting run",
            "The alert fires above 5 minutes, for 5 minutes.",
            "s",
            Query("max(schedd_queue_oldest_seconds)", "oldest"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots",
            "Of all workers; a run takes one or more.",
            "short",
            Query("sum(workerd_slots)", "all"),
            Query("sum(workerd_slots_used)", "used"),
        ),
        lines(
            "Catch-up",
            "Overdue timers, and remaining scheduled times of backfills.",
            "short",
            Query("sum(schedd_catch_up_timers)", "overdue timers"),
            Query("sum(schedd_backfill_runs_left)", "backfills"),
        ),
        lines(
            "Catch-up delay",
            "Age of the oldest overdue timer, also while the database is unavailable.",
            "s",
            Query("max(schedd_catch_up_behind_seconds)", "oldest"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots of pools",
            "Of workers that can run every job of the pool. 0: its runs wait.",
            "short",
            Query("min by (pool) (schedd_pool_slots)", "{{pool}}"),
        ),
    ],
)

GROUND = Row(
    "Dependencies and leases",
    [
        lines(
            "Lease margin",
            "Least remaining share of the TTL at renewal; at 0 a lease is lost.",
            "percentunit",
            Query("schedd_lease_margin_seconds / schedd_lease_ttl_seconds", "{{instance}}"),
            Query("workerd_lease_margin_seconds / workerd_lease_ttl_seconds", "{{instance}}"),
            steps=((None, RED), (0.2, GREEN)),
        ),
        lines(
            "PostgreSQL and etcd",
            "99th percentile of calls.",
            "s",
            Query(quantile(0.99, "schedd_database_call_seconds"), "PostgreSQL"),
            Query(quantile(0.99, "schedd_etcd_call_seconds"), "etcd"),
        ),
        lines(
            "Oldest transaction",
            "Vacuum can't remove rows that it may still see.",
            "s",
            Query("max(schedd_database_oldest_transaction_seconds)", "open for"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Leader changes",
            "In the last 15 minutes; the alert fires above 4.",
            "short",
            Query("max(changes(schedd_term[15m]))", "terms"),
            steps=((None, GREEN), (5, RED)),
        ),
        lines(
            "Fenced",
            "Stale results that were rejected, and runs rescued from lost workers.",
            "short",
            Query("sum(increase(schedd_stale_results_total[5m]))", "stale results"),
            Query("sum(increase(schedd_runs_rescued_total[5m]))", "rescued runs"),
        ),
        lines(
            "Event loops",
            "Longest recent block of each; near the TTL a lease is lost.",
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
        "First look when on call: from left to right, from top to bottom.",
        [WELL, ON_TIME, WORK, QUEUE, GROUND],
    )
