"""Dashboard of the details of members, pools and workers, to find causes."""

from __future__ import annotations

from panels import GREEN, RED, Json, Panel, Query, Row, Variable, dashboard, lines

MEMBER = 'instance=~"$member"'
WORKER = 'instance=~"$worker"'
POOL = 'pool=~"$pool"'
DURATIONS = (
    f"sum by (le, state) (rate(schedd_run_duration_seconds_bucket{{{MEMBER}}}[$__rate_interval]))"
)


def rate(metric: str, where: str, by: str) -> Query:
    """Return the rate of a counter, by a label."""
    per_second = f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"
    return Query(per_second, f"{{{{{by}}}}}")


def grown(metric: str, by: str) -> Query:
    """Return the increase of a counter of members in five minutes, by a label."""
    return Query(f"sum by ({by}) (increase({metric}{{{MEMBER}}}[5m]))", f"{{{{{by}}}}}")


def _calls(service: str, title: str) -> list[Panel]:
    """Return panels of a service: duration, rate and failures, by call."""
    seconds, failed = f"schedd_{service}_call_seconds", f"schedd_{service}_calls_failed_total"
    buckets = f"sum by (le, call) (rate({seconds}_bucket{{{MEMBER}}}[$__rate_interval]))"
    busy = rate(f"{seconds}_count", MEMBER, "call")
    return [
        lines(
            f"{title}: duration",
            "99th percentile; the ten slowest.",
            "s",
            Query(f"topk(10, histogram_quantile(0.99, {buckets}))", "{{call}}"),
        ),
        lines(
            f"{title}: rate",
            "Calls per second; the ten busiest.",
            "ops",
            Query(f"topk(10, {busy.expr})", busy.legend),
        ),
        lines(
            f"{title}: failures",
            "Failed calls per second.",
            "ops",
            rate(failed, MEMBER, "call"),
        ),
    ]


POOLS = Row(
    "Pools",
    [
        lines(
            "Runs and limit",
            "Runs of the pool in progress, and its concurrency limit.",
            "short",
            Query(f"max by (pool) (schedd_pool_running{{{POOL}}})", "{{pool}} runs"),
            Query(f"max by (pool) (schedd_pool_limit{{{POOL}}})", "{{pool}} limit"),
        ),
        lines(
            "Waiting runs",
            "Runs of the pool that wait for its limit, or for a slot.",
            "short",
            Query(f"max by (pool) (schedd_pool_waiting{{{POOL}}})", "{{pool}}"),
        ),
        lines(
            "Slots that can run its jobs",
            "Slots of workers that can run every job of the pool, and the minimum of alerts.yml.",
            "short",
            Query(f"min by (pool) (schedd_pool_slots{{{POOL}}})", "{{pool}}"),
            Query(f"schedd:pool_slots:minimum{{{POOL}}}", "{{pool}} minimum"),
        ),
        lines(
            "Paused",
            "1: the pool is paused.",
            "short",
            Query(f"max by (pool) (schedd_pool_paused{{{POOL}}})", "{{pool}}"),
        ),
    ],
)

SHARDS = Row(
    "Shards and leadership",
    [
        lines(
            "Shards owned",
            "By member; 256 in all.",
            "short",
            Query(f"schedd_shards_owned{{{MEMBER}}}", "{{instance}}"),
            stacked=True,
        ),
        lines(
            "Shards moved",
            "Acquired and released, per 5 minutes.",
            "short",
            grown("schedd_shards_moved_total", "what"),
        ),
        lines(
            "Shards lost",
            "By step: the writes of a member that had lost the shard were rejected.",
            "short",
            grown("schedd_shards_lost_total", "step"),
        ),
        lines(
            "Leader",
            "1: the member is the leader.",
            "short",
            Query(f"schedd_leader{{{MEMBER}}}", "{{instance}}"),
            stacked=True,
        ),
        lines(
            "Not ready, by reason",
            "1: the member isn't ready for this reason; /readyz shows it too.",
            "short",
            Query(f"schedd_not_ready_reasons{{{MEMBER}}}", "{{instance}} {{reason}}"),
        ),
        lines(
            "Leases trusted",
            "1: the member may act on its lease.",
            "short",
            Query(f"schedd_tenure_trusted{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Leader known",
            "1: the member knows a leader; shards: the share assigned to live members.",
            "short",
            Query(f"schedd_leader_known{{{MEMBER}}}", "{{instance}} leader known"),
            Query(f"schedd_shards_assigned{{{MEMBER}}} / 256", "{{instance}} shards assigned"),
        ),
    ],
)

DISPATCH = Row(
    "Dispatch",
    [
        lines(
            "Runs and timers in memory",
            "Timers due soon, waiting runs, runs in progress.",
            "short",
            Query(f"sum(schedd_timers_loaded{{{MEMBER}}})", "timers"),
            Query(f"sum(schedd_queue_ready{{{MEMBER}}})", "wait"),
            Query(f"sum(schedd_queue_running{{{MEMBER}}})", "run"),
        ),
        lines(
            "Slots per member",
            "Of the attached workers that take work.",
            "short",
            Query(f"schedd_slots{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_slots_free{{{MEMBER}}}", "{{instance}} free"),
        ),
        lines(
            "Rejected by workers",
            "Rejected assignments per second, by reason.",
            "ops",
            rate("schedd_assignments_rejected_total", MEMBER, "reason"),
            stacked=True,
        ),
        lines(
            "Lost assignments",
            "Not started, or rescued from a lost worker; per 5 minutes.",
            "short",
            Query(
                f"sum(increase(schedd_assignments_not_started_total{{{MEMBER}}}[5m]))",
                "not started",
            ),
            Query(f"sum(increase(schedd_runs_rescued_total{{{MEMBER}}}[5m]))", "rescued"),
            Query(f"sum(increase(schedd_stale_results_total{{{MEMBER}}}[5m]))", "stale results"),
            Query(
                f"sum(increase(schedd_greater_tokens_seen_total{{{MEMBER}}}[5m]))", "greater tokens"
            ),
        ),
        lines(
            "Duration of attempts",
            "95th percentile, by end state.",
            "s",
            Query(f"histogram_quantile(0.95, {DURATIONS})", "{{state}}"),
        ),
        lines(
            "Rows without a run",
            "Rows for scheduled times that didn't run, per second.",
            "ops",
            Query(f"sum(rate(schedd_runs_merged_total{{{MEMBER}}}[$__rate_interval]))", "rows"),
        ),
        lines(
            "Workers attached",
            "Each worker opens a stream to every member.",
            "short",
            Query(f"schedd_workers_attached{{{MEMBER}}}", "{{instance}}"),
        ),
    ],
)

SERVICES = Row("PostgreSQL and etcd", [*_calls("database", "PostgreSQL"), *_calls("etcd", "etcd")])

KEEPING = Row(
    "Notifications and retention",
    [
        lines(
            "Notifications",
            "Delivered per second; failed attempts; abandoned after a day.",
            "ops",
            rate("schedd_notifications_sent_total", MEMBER, "channel"),
            Query(
                f"sum(rate(schedd_notification_attempts_failed_total{{{MEMBER}}}[$__rate_interval]))",
                "failed",
            ),
            Query(
                f"sum(rate(schedd_notifications_abandoned_total{{{MEMBER}}}[$__rate_interval]))",
                "abandoned",
            ),
        ),
        lines(
            "Waiting notifications",
            "Of each member's shards, up to 10,000.",
            "short",
            Query(f"schedd_notifications_waiting{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Retention",
            "Rows deleted per second, and failed calls of the result store.",
            "ops",
            rate("schedd_retention_deleted_total", MEMBER, "what"),
            Query(
                f"sum(rate(schedd_result_store_failures_total{{{MEMBER}}}[$__rate_interval]))",
                "store failures",
            ),
        ),
    ],
)

PROCESS = Row(
    "Processes of members",
    [
        lines(
            "Event loop",
            "Longest block of the last two minutes; own: the member's CPU time in it.",
            "s",
            Query(f"schedd_event_loop_longest_block_seconds{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_event_loop_longest_own_block_seconds{{{MEMBER}}}", "{{instance}} own"),
            steps=((None, GREEN), (1, RED)),
        ),
        lines(
            "Items set aside",
            "Invalid values of workers, callers and rows, per second.",
            "ops",
            rate("schedd_items_set_aside_total", MEMBER, "kind"),
            rate("workerd_items_set_aside_total", WORKER, "kind"),
        ),
        lines(
            "CPU",
            "Cores in use.",
            "short",
            Query(
                f'rate(process_cpu_seconds_total{{job="schedd", {MEMBER}}}[$__rate_interval])',
                "{{instance}}",
            ),
        ),
        lines(
            "Memory",
            "Resident.",
            "bytes",
            Query(f'process_resident_memory_bytes{{job="schedd", {MEMBER}}}', "{{instance}}"),
        ),
        lines(
            "File descriptors",
            "Open, as a share of the limit.",
            "percentunit",
            Query(f"process_open_fds{{{MEMBER}}} / process_max_fds{{{MEMBER}}}", "{{instance}}"),
            steps=((None, GREEN), (0.8, RED)),
        ),
    ],
)

WORKERS = Row(
    "Workers",
    [
        lines(
            "Slots",
            "Used by held, pre-dispatched and running attempts; free.",
            "short",
            Query(f"workerd_slots_used{{{WORKER}}}", "{{instance}} used"),
            Query(f"workerd_slots_free{{{WORKER}}}", "{{instance}} free"),
        ),
        lines(
            "Starts per second",
            "By action.",
            "ops",
            rate("workerd_starts_total", WORKER, "action"),
            stacked=True,
        ),
        lines(
            "Ends per second",
            "By outcome.",
            "ops",
            rate("workerd_outcomes_total", WORKER, "outcome"),
            stacked=True,
        ),
        lines(
            "Rejected",
            "Rejected assignments per second, by reason.",
            "ops",
            rate("workerd_assignments_rejected_total", WORKER, "reason"),
        ),
        lines(
            "Results",
            "Not yet stored by a member; and answers per second, by verdict.",
            "short",
            Query(f"sum(workerd_spool_results{{{WORKER}}})", "in spools"),
            rate("workerd_results_acknowledged_total", WORKER, "verdict"),
        ),
        lines(
            "Logs and large results",
            "Uploads to the result store per second, by outcome.",
            "ops",
            rate("workerd_result_store_uploads_total", WORKER, "outcome"),
        ),
        lines(
            "Members attached to",
            "Members per worker; trusted is 1 while its lease is valid.",
            "short",
            Query(f"workerd_members_attached{{{WORKER}}}", "{{instance}}"),
            Query(f"workerd_trusted{{{WORKER}}}", "{{instance}} trusted"),
        ),
    ],
)


def depth() -> Json:
    """Return the dashboard."""
    return dashboard(
        "schedd-depth",
        "schedd: inside members, pools and workers",
        "Details by member, pool, call and worker.",
        [POOLS, SHARDS, DISPATCH, SERVICES, KEEPING, PROCESS, WORKERS],
        [
            Variable("member", "Member", "label_values(schedd_term, instance)"),
            Variable("pool", "Pool", "label_values(schedd_pool_slots, pool)"),
            Variable("worker", "Worker", "label_values(workerd_slots, instance)"),
        ],
    )
