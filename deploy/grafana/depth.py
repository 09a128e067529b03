"""Dashboard with details of members, pools and workers, which shows the cause of a problem."""

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
            "99th percentile of the ten slowest calls.",
            "s",
            Query(f"topk(10, histogram_quantile(0.99, {buckets}))", "{{call}}"),
        ),
        lines(
            f"{title}: rate",
            "Calls per second, of the ten most frequent calls.",
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
            "Running runs of the pool, and the concurrency limit of the pool.",
            "short",
            Query(f"max by (pool) (schedd_pool_running{{{POOL}}})", "{{pool}} runs"),
            Query(f"max by (pool) (schedd_pool_limit{{{POOL}}})", "{{pool}} limit"),
        ),
        lines(
            "Waiting runs",
            "Runs that wait for the pool's limit, or for a free slot of a worker.",
            "short",
            Query(f"max by (pool) (schedd_pool_waiting{{{POOL}}})", "{{pool}}"),
        ),
        lines(
            "Slots for the pool's jobs",
            "Slots of workers that can run every job of the pool, and the threshold of the alert.",
            "short",
            Query(f"min by (pool) (schedd_pool_slots{{{POOL}}})", "{{pool}}"),
            Query(f"schedd:pool_slots:minimum{{{POOL}}}", "{{pool}} minimum"),
        ),
        lines(
            "Paused",
            "1 if the pool is paused, else 0.",
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
            "Shards (parts of the jobs) that each member owns. The cluster has 256 shards.",
            "short",
            Query(f"schedd_shards_owned{{{MEMBER}}}", "{{instance}}"),
            stacked=True,
        ),
        lines(
            "Shards moved",
            "Shards that a member acquired or released, per 5 minutes.",
            "short",
            grown("schedd_shards_moved_total", "what"),
        ),
        lines(
            "Shards lost",
            "Writes that the database rejected, because the member had lost the shard; per 5"
            " minutes, by step.",
            "short",
            grown("schedd_shards_lost_total", "step"),
        ),
        lines(
            "Leader",
            "1 if the member is the leader, else 0.",
            "short",
            Query(f"schedd_leader{{{MEMBER}}}", "{{instance}}"),
            stacked=True,
        ),
        lines(
            "Not ready, by reason",
            "1 if the member isn't ready for this reason. The member's /readyz has the details.",
            "short",
            Query(f"schedd_not_ready_reasons{{{MEMBER}}}", "{{instance}} {{reason}}"),
        ),
        lines(
            "Valid lease",
            "1 while the member's lease in etcd is valid. Without a valid lease, the member"
            " dispatches no runs.",
            "short",
            Query(f"schedd_tenure_trusted{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Leader and shard map",
            "1 if the member knows the leader, and the share of shards that are assigned to"
            " running members.",
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
            "Timers that are due soon, waiting runs, and running runs, in the memory of members.",
            "short",
            Query(f"sum(schedd_timers_loaded{{{MEMBER}}})", "timers"),
            Query(f"sum(schedd_queue_ready{{{MEMBER}}})", "waiting runs"),
            Query(f"sum(schedd_queue_running{{{MEMBER}}})", "running runs"),
        ),
        lines(
            "Slots per member",
            "Slots of the workers that are connected to the member and accept runs.",
            "short",
            Query(f"schedd_slots{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_slots_free{{{MEMBER}}}", "{{instance}} free"),
        ),
        lines(
            "Runs rejected by workers",
            "Runs that a worker rejected, per second, by reason.",
            "ops",
            rate("schedd_assignments_rejected_total", MEMBER, "reason"),
            stacked=True,
        ),
        lines(
            "Lost assignments",
            "Per 5 minutes: runs that didn't reach their worker, runs of lost workers, and"
            " results rejected because the run has another attempt.",
            "short",
            Query(
                f"sum(increase(schedd_assignments_not_started_total{{{MEMBER}}}[5m]))",
                "not started",
            ),
            Query(f"sum(increase(schedd_runs_rescued_total{{{MEMBER}}}[5m]))", "lost workers"),
            Query(f"sum(increase(schedd_stale_results_total{{{MEMBER}}}[5m]))", "stale results"),
            Query(
                f"sum(increase(schedd_greater_tokens_seen_total{{{MEMBER}}}[5m]))",
                "token too great",
            ),
        ),
        lines(
            "Duration of attempts",
            "95th percentile of the duration of attempts, by final state.",
            "s",
            Query(f"histogram_quantile(0.95, {DURATIONS})", "{{state}}"),
        ),
        lines(
            "Scheduled times without a run",
            "Scheduled times that didn't run, in rows per second. One row stands for"
            " consecutive times.",
            "ops",
            Query(f"sum(rate(schedd_runs_merged_total{{{MEMBER}}}[$__rate_interval]))", "rows"),
        ),
        lines(
            "Connected workers",
            "Workers that are connected to the member. Each worker connects to every member.",
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
            "Per second: delivered notifications, failed attempts, and notifications"
            " abandoned after a day.",
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
            "Notifications that wait for delivery, of the shards of each member. The count"
            " ends at 10,000.",
            "short",
            Query(f"schedd_notifications_waiting{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Retention",
            "Per second: rows that retention deleted, and failed calls to the result store.",
            "ops",
            rate("schedd_retention_deleted_total", MEMBER, "what"),
            Query(
                f"sum(rate(schedd_result_store_failures_total{{{MEMBER}}}[$__rate_interval]))",
                "failed calls",
            ),
        ),
    ],
)

PROCESS = Row(
    "Processes of members",
    [
        lines(
            "Event loop",
            "Longest time in the last two minutes in which the event loop didn't respond."
            " `own` is the"
            " member's CPU time in this time.",
            "s",
            Query(f"schedd_event_loop_longest_block_seconds{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_event_loop_longest_own_block_seconds{{{MEMBER}}}", "{{instance}} own"),
            steps=((None, GREEN), (1, RED)),
        ),
        lines(
            "Invalid items",
            "Invalid values that were skipped, per second: from workers, callers and"
            " database rows.",
            "ops",
            rate("schedd_items_set_aside_total", MEMBER, "kind"),
            rate("workerd_items_set_aside_total", WORKER, "kind"),
        ),
        lines(
            "CPU",
            "CPU cores that the member uses.",
            "short",
            Query(
                f'rate(process_cpu_seconds_total{{job="schedd", {MEMBER}}}[$__rate_interval])',
                "{{instance}}",
            ),
        ),
        lines(
            "Memory",
            "Resident memory of the member.",
            "bytes",
            Query(f'process_resident_memory_bytes{{job="schedd", {MEMBER}}}', "{{instance}}"),
        ),
        lines(
            "File descriptors",
            "Open file descriptors, in percent of the process's limit.",
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
            "Slots that attempts use, and free slots. Attempts that haven't started yet also"
            " use slots.",
            "short",
            Query(f"workerd_slots_used{{{WORKER}}}", "{{instance}} used"),
            Query(f"workerd_slots_free{{{WORKER}}}", "{{instance}} free"),
        ),
        lines(
            "Starts per second",
            "Attempts that the worker started, by action (shell, http, …).",
            "ops",
            rate("workerd_starts_total", WORKER, "action"),
            stacked=True,
        ),
        lines(
            "Ends per second",
            "Attempts that ended, by outcome.",
            "ops",
            rate("workerd_outcomes_total", WORKER, "outcome"),
            stacked=True,
        ),
        lines(
            "Rejected runs",
            "Runs that the worker rejected, per second, by reason.",
            "ops",
            rate("workerd_assignments_rejected_total", WORKER, "reason"),
        ),
        lines(
            "Results",
            "Results in the worker's spool, which no member has stored yet; and answers of"
            " members per"
            " second, by verdict.",
            "short",
            Query(f"sum(workerd_spool_results{{{WORKER}}})", "in spools"),
            rate("workerd_results_acknowledged_total", WORKER, "verdict"),
        ),
        lines(
            "Logs and large results",
            "Uploads of logs and large results to the result store, per second, by outcome.",
            "ops",
            rate("workerd_result_store_uploads_total", WORKER, "outcome"),
        ),
        lines(
            "Connected members",
            "Members to which the worker is connected. `lease valid` is 1 while the worker's"
            " lease is valid.",
            "short",
            Query(f"workerd_members_attached{{{WORKER}}}", "{{instance}}"),
            Query(f"workerd_trusted{{{WORKER}}}", "{{instance}} lease valid"),
        ),
    ],
)


def depth() -> Json:
    """Return the dashboard."""
    return dashboard(
        "schedd-depth",
        "schedd: inside members, pools and workers",
        "Details of members, pools, calls and workers, to find the cause of a problem.",
        [POOLS, SHARDS, DISPATCH, SERVICES, KEEPING, PROCESS, WORKERS],
        [
            Variable("member", "Member", "label_values(schedd_term, instance)"),
            Variable("pool", "Pool", "label_values(schedd_pool_slots, pool)"),
            Variable("worker", "Worker", "label_values(workerd_slots, instance)"),
        ],
    )
