"""The cluster at a glance: for who is on call, and wants to know in a minute what is wrong."""

from __future__ import annotations

from panels import GREEN, RED, YELLOW, Json, Query, Row, dashboard, heat, lines, number

NONE = ((None, GREEN), (1, RED))
"""Any is one too many."""
SOME = ((None, RED), (1, GREEN))
"""There has to be one."""


def quantile(share: float, metric: str, by: str = "le") -> str:
    """Of a histogram, over all members, in the last minutes."""
    rate = f"rate({metric}_bucket[$__rate_interval])"
    return f"histogram_quantile({share}, sum by ({by}) ({rate}))"


def per_second(metric: str, by: str = "") -> str:
    """Of a counter, over all members."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}[$__rate_interval]))"


WELL = Row(
    "Is it well?",
    [
        number(
            "Alerts",
            "Of deploy/prometheus/alerts.yml, that fire now.",
            "short",
            'count(ALERTS{alertname=~"Schedd.*", alertstate="firing"}) or vector(0)',
            NONE,
        ),
        number(
            "Not ready",
            "Members that refuse calls: /readyz of each says why.",
            "short",
            "count(schedd_ready == 0) or vector(0)",
            NONE,
        ),
        number(
            "Leaders",
            "One leads. None: no shard moves, and what falls due may wait.",
            "short",
            "sum(schedd_leader) or vector(0)",
            ((None, RED), (1, GREEN), (2, RED)),
        ),
        number(
            "Shards without owner",
            "Of 256. Jobs of these don't run.",
            "short",
            "256 - (sum(schedd_shards_owned) or vector(0))",
            NONE,
        ),
        number("Members", "That live, as etcd says.", "short", "max(schedd_members)", SOME),
        number("Workers", "That live, as etcd says.", "short", "max(schedd_workers)", SOME),
        number(
            "Missed in an hour",
            "Instants for which nothing runs any more, but those that an edit left out.",
            "short",
            'sum(increase(schedd_instants_missed_total{reason!~"EDITED|DELETED"}[1h]))',
            NONE,
        ),
        number(
            "Dead letters",
            "Runs that failed for good and wait for a person, up to 10,000.",
            "short",
            "max(schedd_dead_letters_waiting)",
            ((None, GREEN), (1, YELLOW), (1000, RED)),
        ),
        number(
            "Paused",
            "1: the whole cluster is, and somebody said so.",
            "short",
            "max(schedd_cluster_paused)",
            ((None, GREEN), (1, YELLOW)),
        ),
    ],
)

ON_TIME = Row(
    "On time?",
    [
        lines(
            "Start after due",
            "From due to the start of the handler; what is late here is late for whoever waits.",
            "s",
            Query(quantile(0.5, "schedd_run_start_lateness_seconds"), "half"),
            Query(quantile(0.95, "schedd_run_start_lateness_seconds"), "95 of 100"),
            Query(quantile(0.99, "schedd_run_start_lateness_seconds"), "99 of 100"),
            steps=((None, GREEN), (5, RED)),
        ),
        heat(
            "Start after due, all of them",
            "How many starts were how late.",
            "s",
            "sum by (le) (increase(schedd_run_start_lateness_seconds_bucket[$__rate_interval]))",
        ),
        lines(
            "Where the time goes",
            "99 of 100: made into a run (members, database), and handed out (slots, pools).",
            "s",
            Query(quantile(0.99, "schedd_fire_lateness_seconds"), "due to made"),
            Query(quantile(0.99, "schedd_run_wait_seconds"), "ready to handed out"),
        ),
    ],
)

WORK = Row(
    "What is done",
    [
        lines(
            "Runs a second",
            "By schedule, and in all: triggers, submits and retries are handed out too.",
            "ops",
            Query(per_second("schedd_runs_fired_total"), "made by schedules"),
            Query(per_second("schedd_runs_assigned_total"), "handed out"),
        ),
        lines(
            "Ends a second, by state",
            "Attempts that ended, and runs that ended without one.",
            "ops",
            Query(per_second("schedd_runs_ended_total", "state"), "{{state}}"),
            stacked=True,
        ),
        lines(
            "Failures a second, by reason",
            "What didn't succeed, and why.",
            "ops",
            Query(
                per_second('schedd_runs_ended_total{state=~"FAILED|RETRYING"}', "reason"),
                "{{reason}}",
            ),
            stacked=True,
        ),
        lines(
            "How long attempts take",
            "95 of 100 take less; the alert is at three times what they took in the last week.",
            "s",
            Query("schedd:run_duration_seconds:p95_15m", "now"),
            Query("3 * schedd:run_duration_seconds:p95_7d", "three times a week's"),
        ),
        lines(
            "Missed, by reason",
            "Instants for which nothing runs any more, in each five minutes.",
            "short",
            Query("sum by (reason) (increase(schedd_instants_missed_total[5m]))", "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Dead letters",
            "That wait, and that were added in a quarter of an hour.",
            "short",
            Query("max(schedd_dead_letters_waiting)", "wait"),
            Query("sum(increase(schedd_dead_letters_total[15m]))", "new"),
        ),
    ],
)

QUEUE = Row(
    "What waits",
    [
        lines(
            "Runs that wait",
            "For a slot, for room in their pool, and late ones behind what is due now.",
            "short",
            Query("sum(schedd_queue_ready)", "all"),
            Query("sum(schedd_queue_pooled)", "for their pool"),
            Query("sum(schedd_queue_late)", "late"),
        ),
        lines(
            "For how long",
            "The oldest of these; more than five minutes for five minutes is an alert.",
            "s",
            Query("max(schedd_queue_oldest_seconds)", "the oldest"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots",
            "Of all workers; what runs takes some of them each.",
            "short",
            Query("sum(workerd_slots)", "all"),
            Query("sum(workerd_slots_used)", "used"),
        ),
        lines(
            "Catching up",
            "Timers that should have fired, and instants that backfills have left.",
            "short",
            Query("sum(schedd_catch_up_timers)", "timers behind"),
            Query("sum(schedd_backfill_instants_left)", "instants of backfills"),
        ),
        lines(
            "How far behind",
            "Since when the first of these timers is due, also while the database is away.",
            "s",
            Query("max(schedd_catch_up_behind_seconds)", "the first"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Slots of pools",
            "Of workers that can do each job of the pool. None: its runs wait for ever.",
            "short",
            Query("min by (pool) (schedd_pool_slots)", "{{pool}}"),
        ),
    ],
)

GROUND = Row(
    "What it stands on",
    [
        lines(
            "Slack of leases",
            "The least that was left when they were renewed, as a share; at 0 one is lost.",
            "percentunit",
            Query("schedd_lease_slack_seconds / schedd_lease_ttl_seconds", "{{instance}}"),
            Query("workerd_lease_slack_seconds / workerd_lease_ttl_seconds", "{{instance}}"),
            steps=((None, RED), (0.2, GREEN)),
        ),
        lines(
            "PostgreSQL and etcd",
            "99 of 100 calls take less.",
            "s",
            Query(quantile(0.99, "schedd_database_call_seconds"), "PostgreSQL"),
            Query(quantile(0.99, "schedd_etcd_call_seconds"), "etcd"),
        ),
        lines(
            "Oldest transaction",
            "Vacuum can't clean up behind it.",
            "s",
            Query("max(schedd_database_oldest_transaction_seconds)", "open for"),
            steps=((None, GREEN), (300, RED)),
        ),
        lines(
            "Changes of leader",
            "In a quarter of an hour; more than four are an alert.",
            "short",
            Query("max(changes(schedd_term[15m]))", "terms"),
            steps=((None, GREEN), (5, RED)),
        ),
        lines(
            "Fenced",
            "Results refused for a greater token, and runs of lost workers that moved on.",
            "short",
            Query("sum(increase(schedd_stale_results_total[5m]))", "stale results"),
            Query("sum(increase(schedd_rescued_runs_total[5m]))", "rescued runs"),
        ),
        lines(
            "Event loops",
            "The longest that each stood still lately; a lease is lost near its TTL.",
            "s",
            Query("schedd_event_loop_longest_block_seconds", "{{instance}}"),
            steps=((None, GREEN), (1, RED)),
        ),
    ],
)


def glance() -> Json:
    """The dashboard."""
    return dashboard(
        "schedd-glance",
        "schedd: the cluster at a glance",
        "What somebody on call looks at first: from left to right and from top to bottom.",
        [WELL, ON_TIME, WORK, QUEUE, GROUND],
    )
