"""Inside members, pools and workers: for who knows where to look, and wants to know why."""

from __future__ import annotations

from panels import GREEN, RED, Json, Panel, Query, Row, Variable, dashboard, lines

MEMBER = 'instance=~"$member"'
WORKER = 'instance=~"$worker"'
POOL = 'pool=~"$pool"'
DURATIONS = (
    f"sum by (le, state) (rate(schedd_run_duration_seconds_bucket{{{MEMBER}}}[$__rate_interval]))"
)


def rate(metric: str, where: str, by: str) -> Query:
    """A counter a second, by a label."""
    per_second = f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"
    return Query(per_second, f"{{{{{by}}}}}")


def grown(metric: str, by: str) -> Query:
    """By how much a counter of members grew in five minutes, by a label."""
    return Query(f"sum by ({by}) (increase({metric}{{{MEMBER}}}[5m]))", f"{{{{{by}}}}}")


def _calls(service: str, title: str) -> list[Panel]:
    """How long a service takes, how often it is called, how often in vain; by call."""
    seconds, failed = f"schedd_{service}_call_seconds", f"schedd_{service}_calls_failed_total"
    buckets = f"sum by (le, call) (rate({seconds}_bucket{{{MEMBER}}}[$__rate_interval]))"
    busy = rate(f"{seconds}_count", MEMBER, "call")
    return [
        lines(
            f"{title}: how long",
            "99 of 100 take less; the ten slowest.",
            "s",
            Query(f"topk(10, histogram_quantile(0.99, {buckets}))", "{{call}}"),
        ),
        lines(
            f"{title}: how often",
            "A second; the ten busiest.",
            "ops",
            Query(f"topk(10, {busy.expr})", busy.legend),
        ),
        lines(
            f"{title}: in vain",
            "Without an answer, a second.",
            "ops",
            rate(failed, MEMBER, "call"),
        ),
    ]


POOLS = Row(
    "Pools",
    [
        lines(
            "How full",
            "Runs of the pool that run, beside what it allows at once.",
            "short",
            Query(f"max by (pool) (schedd_pool_running{{{POOL}}})", "{{pool}} runs"),
            Query(f"max by (pool) (schedd_pool_limit{{{POOL}}})", "{{pool}} allows"),
        ),
        lines(
            "What waits",
            "Runs of the pool that are ready and have no room, or no slot.",
            "short",
            Query(f"max by (pool) (schedd_pool_waiting{{{POOL}}})", "{{pool}}"),
        ),
        lines(
            "Who could do it",
            "Slots of the workers that can do each of its jobs, beside the minimum of alerts.yml.",
            "short",
            Query(f"min by (pool) (schedd_pool_slots{{{POOL}}})", "{{pool}}"),
            Query(f"schedd:pool_slots:minimum{{{POOL}}}", "{{pool}} minimum"),
        ),
        lines(
            "Paused",
            "1 while the pool is.",
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
            "Shards handed over",
            "Taken, and let go, in each five minutes.",
            "short",
            grown("schedd_shards_moved_total", "what"),
        ),
        lines(
            "Shards found to be another's",
            "By the step that found it: a member that acted on what it had lost was refused.",
            "short",
            grown("schedd_shards_lost_total", "step"),
        ),
        lines(
            "Who leads",
            "1 where a member leads.",
            "short",
            Query(f"schedd_leader{{{MEMBER}}}", "{{instance}}"),
            stacked=True,
        ),
        lines(
            "Not ready, and why",
            "1 for each reason that a member has, as its /readyz says; 0 for those that it hasn't.",
            "short",
            Query(f"schedd_not_ready_reasons{{{MEMBER}}}", "{{instance}} {{reason}}"),
        ),
        lines(
            "Trust",
            "1 while the member may act on its lease.",
            "short",
            Query(f"schedd_tenure_trusted{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Who knows a leader",
            "1 where one is known; and how many shards the map gives to live members.",
            "short",
            Query(f"schedd_leader_known{{{MEMBER}}}", "{{instance}} knows one"),
            Query(f"schedd_shards_assigned{{{MEMBER}}} / 256", "{{instance}} shards given"),
        ),
    ],
)

DISPATCH = Row(
    "Handing out",
    [
        lines(
            "Held in memory",
            "Timers due soon, runs that wait, and runs that run.",
            "short",
            Query(f"sum(schedd_timers_held{{{MEMBER}}})", "timers"),
            Query(f"sum(schedd_queue_ready{{{MEMBER}}})", "wait"),
            Query(f"sum(schedd_queue_running{{{MEMBER}}})", "run"),
        ),
        lines(
            "Slots as members see them",
            "Of the workers attached to each that take work.",
            "short",
            Query(f"schedd_slots{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_slots_free{{{MEMBER}}}", "{{instance}} free"),
        ),
        lines(
            "Refused by workers",
            "Assignments that weren't taken, a second, and why.",
            "ops",
            rate("schedd_refusals_total", MEMBER, "why"),
            stacked=True,
        ),
        lines(
            "Came to nothing",
            "Never started, or moved on from a lost worker; in each five minutes.",
            "short",
            Query(f"sum(increase(schedd_never_started_total{{{MEMBER}}}[5m]))", "never started"),
            Query(f"sum(increase(schedd_rescued_runs_total{{{MEMBER}}}[5m]))", "rescued"),
            Query(f"sum(increase(schedd_stale_results_total{{{MEMBER}}}[5m]))", "stale results"),
            Query(
                f"sum(increase(schedd_greater_tokens_seen_total{{{MEMBER}}}[5m]))", "greater tokens"
            ),
        ),
        lines(
            "How long attempts take",
            "95 of 100 take less, by how they ended.",
            "s",
            Query(f"histogram_quantile(0.95, {DURATIONS})", "{{state}}"),
        ),
        lines(
            "Accounted for",
            "Rows for instants that didn't run, a second.",
            "ops",
            Query(f"sum(rate(schedd_runs_folded_total{{{MEMBER}}}[$__rate_interval]))", "rows"),
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
    "What is told and kept",
    [
        lines(
            "Notifications",
            "Delivered a second; tries that failed; given up after a day.",
            "ops",
            rate("schedd_notifications_sent_total", MEMBER, "way"),
            Query(
                f"sum(rate(schedd_notification_tries_failed_total{{{MEMBER}}}[$__rate_interval]))",
                "failed",
            ),
            Query(
                f"sum(rate(schedd_notifications_given_up_total{{{MEMBER}}}[$__rate_interval]))",
                "given up",
            ),
        ),
        lines(
            "Notifications that wait",
            "Of each member's shards, up to 10,000.",
            "short",
            Query(f"schedd_notifications_waiting{{{MEMBER}}}", "{{instance}}"),
        ),
        lines(
            "Not kept any longer",
            "Deleted a second, and calls that the result store didn't answer.",
            "ops",
            rate("schedd_retention_deleted_total", MEMBER, "what"),
            Query(
                f"sum(rate(schedd_result_store_failures_total{{{MEMBER}}}[$__rate_interval]))",
                "store away",
            ),
        ),
    ],
)

PROCESS = Row(
    "Processes of members",
    [
        lines(
            "Event loop",
            "Its longest block of the last minute or two; own: the member's CPU within it.",
            "s",
            Query(f"schedd_event_loop_longest_block_seconds{{{MEMBER}}}", "{{instance}}"),
            Query(f"schedd_event_loop_longest_own_block_seconds{{{MEMBER}}}", "{{instance}} own"),
            steps=((None, GREEN), (1, RED)),
        ),
        lines(
            "Items set aside",
            "Values of workers, callers and rows that can't be handled, a second.",
            "ops",
            rate("schedd_items_set_aside_total", MEMBER, "kind"),
            rate("workerd_items_set_aside_total", WORKER, "kind"),
        ),
        lines(
            "Processor",
            "Cores taken.",
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
            "Descriptors",
            "Open, as a share of what it may open.",
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
            "Used by what is held, armed or runs, and free.",
            "short",
            Query(f"workerd_slots_used{{{WORKER}}}", "{{instance}} used"),
            Query(f"workerd_slots_free{{{WORKER}}}", "{{instance}} free"),
        ),
        lines(
            "Starts a second",
            "By what is run.",
            "ops",
            rate("workerd_starts_total", WORKER, "action"),
            stacked=True,
        ),
        lines(
            "Ends a second",
            "By how attempts ended.",
            "ops",
            rate("workerd_outcomes_total", WORKER, "outcome"),
            stacked=True,
        ),
        lines(
            "Not taken",
            "Assignments, a second, and why.",
            "ops",
            rate("workerd_refusals_total", WORKER, "why"),
        ),
        lines(
            "Results",
            "That no member has stored yet; and those answered a second, by verdict.",
            "short",
            Query(f"sum(workerd_spool_results{{{WORKER}}})", "in spools"),
            rate("workerd_results_settled_total", WORKER, "verdict"),
        ),
        lines(
            "Logs and large results",
            "That were to go to the result store, a second, by what came of it.",
            "ops",
            rate("workerd_kept_total", WORKER, "outcome"),
        ),
        lines(
            "Members attached to",
            "By worker; and 1 while its lease surely lives.",
            "short",
            Query(f"workerd_members_attached{{{WORKER}}}", "{{instance}}"),
            Query(f"workerd_trusted{{{WORKER}}}", "{{instance}} trusted"),
        ),
    ],
)


def depth() -> Json:
    """The dashboard."""
    return dashboard(
        "schedd-depth",
        "schedd: inside members, pools and workers",
        "Why: by member, by pool, by call, by worker.",
        [POOLS, SHARDS, DISPATCH, SERVICES, KEEPING, PROCESS, WORKERS],
        [
            Variable("member", "Member", "label_values(schedd_term, instance)"),
            Variable("pool", "Pool", "label_values(schedd_pool_slots, pool)"),
            Variable("worker", "Worker", "label_values(workerd_slots, instance)"),
        ],
    )
