"""Flags that describe work and when it is done, and the job that they make.

Values stay texts and are read by One JSON's own reader, so that a flag, a manifest and REST mean
the same; a problem names the flag it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from schedctl.failure import CommandFailure
from schedctl.options import notifications, resource_limits
from schedctl.options.payloads import read_payload
from schedctl.session import INSTANT, Guard, LocalWhen, TimeType
from schedkit.protojson import FormErrors, Problem, from_json
from schedproto.v1 import job_pb2

F = TypeVar("F", bound=Callable[..., Any])

PLAIN: Final = {
    "priority": "priority",
    "timeout": "timeout",
    "heartbeat_timeout": "heartbeat_timeout",
    "kill_after": "kill_after",
    "run_timeout": "run_timeout",
    "start_deadline": "start_deadline",
    "delivery": "delivery",
    "placement": "placement",
    "on_lease_lost": "on_lease_lost",
    "slots": "slots",
    "retention": "retention",
    "pool": "pool",
    "every": "every",
    "phase": "phase",
    "anchor": "anchor",
    "tz": "time_zone",
    "start": "start",
    "end": "end",
    "jitter": "jitter",
    "max_runs": "max_runs",
    "pause_after_failures": "pause_after_failures",
}
"""Flags (as parameters) whose text is a field of the job."""

FLAG_OF: Final = {field: f"--{flag.replace('_', '-')}" for flag, field in PLAIN.items()} | {
    "retry.max_attempts": "--max-attempts",
    "retry.backoff": "--backoff",
    "on_demand": "--on-demand",
    "after.jobs": "--after",
    "after.when": "--when",
    "after.with_output": "--with-output",
    "after": "--after",
    "at": "--at",
    "overlap": "--overlap",
    "exclude.calendars": "--exclude-calendar",
    "exclude.cron": "--exclude-cron",
    "dst.gap": "--dst-gap",
    "dst.overlap": "--dst-overlap",
    "catch_up.policy": "--catch-up",
    "catch_up.window": "--catch-up-window",
    "shell.argv": "-- ARGV",
    "http.url": "--http",
    "http.method": "--method",
    "grpc.endpoint": "--grpc",
    "grpc.method": "--method",
    "python.handler": "--python",
    "plugin.executor": "--plugin",
    "plugin.config": "--plugin-config",
    "retry": "--retry",
    "require": "--require",
    "prefer": "--prefer",
    "labels": "--label",
    **resource_limits.FLAG_OF,
    **{field: f"--{field.replace('_', '-')}" for field in notifications.FLAGS},
}
"""Fields to the flags that set them."""


def work_options(command: F) -> F:
    """What to run, how often, how long, where."""
    for option in reversed(
        [
            click.option("--http", metavar="URL", help="Call this URL."),
            click.option(
                "--grpc", metavar="HOST:PORT", help="Call this service; grpcs://… by TLS."
            ),
            click.option(
                "--method",
                help="HTTP: POST if not given. gRPC: package.Service/Method; else JobHandler.Run.",
            ),
            click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="HTTP header."),
            click.option(
                "--metadata", multiple=True, metavar="'NAME: VALUE'", help="Of the gRPC call."
            ),
            click.option("--body", help="HTTP body; the payload if not given."),
            click.option("--python", metavar="HANDLER", help="Run a worker's Python handler."),
            click.option("--plugin", metavar="EXECUTOR", help="Run by an executor of others."),
            click.option("--plugin-config", metavar="JSON|@FILE|-", help="What that is to do."),
            click.option("--env", multiple=True, metavar="KEY=VALUE", help="For the command."),
            click.option("--cwd", metavar="DIR", help="Where the command runs."),
            click.option("--user", metavar="NAME", help="As whom the command runs."),
            resource_limits.options,
            click.option("--payload", metavar="JSON|@FILE|-", help="What the work is given."),
            click.option("--priority", metavar="high|medium|low", help="[default: medium]"),
            click.option("--retry", metavar="KEY=VALUE,…", help="max_attempts=4,retry_on=75+5xx,…"),
            click.option("--max-attempts", metavar="N", help="Tries in all.  [default: 4]"),
            click.option("--backoff", metavar="10s", help="Wait before the second try."),
            click.option("--timeout", metavar="1h", help="Of one attempt.  [default: 1h]"),
            click.option(
                "--heartbeat-timeout", metavar="1m", help="Of a handler: how long it may be silent."
            ),
            click.option("--kill-after", metavar="10s", help="From terminate to kill."),
            click.option("--run-timeout", metavar="DURATION", help="Over all attempts."),
            click.option("--start-deadline", metavar="DURATION", help="Missed if it waits longer."),
            click.option("--delivery", metavar="at-least-once|at-most-once"),
            click.option("--on-lease-lost", metavar="finish|kill"),
            click.option("--slots", metavar="N", help="Slots a run takes.  [default: 1]"),
            click.option("--retention", metavar="30d", help="What has ended is kept so long."),
            click.option("--pool", metavar="NAME", help="Whose limits it shares; '' for none."),
            click.option(
                "--require", multiple=True, metavar="KEY=VALUE,…", help="A label of its worker."
            ),
            click.option(
                "--prefer", multiple=True, metavar="KEY=VALUE,…", help="A better worker's."
            ),
            click.option(
                "--placement", metavar="spread|pack|sticky|broadcast", help="[default: spread]"
            ),
        ]
    ):
        command = option(command)
    return command


def paused_option(command: F) -> F:
    """For a job that is made; later it is paused and resumed by calls of their own."""
    return click.option("--paused", is_flag=True, help="Stored, and not fired until resumed.")(
        command
    )


def schedule_options(command: F) -> F:
    """When: exactly one of cron, every, at, on-demand, after; and what bends it."""
    for option in reversed(
        [
            click.option("--cron", multiple=True, metavar="EXPR", help="Repeatable: their union."),
            click.option("--every", metavar="30s", help="Aligned to the epoch."),
            click.option("--phase", metavar="DURATION", help="Moves --every."),
            click.option(
                "--anchor",
                metavar="LOCAL",
                help="Local time in --tz that --every is aligned to: 2026-01-06T09:00:00.",
            ),
            click.option(
                "--at",
                type=LocalWhen(),
                metavar=INSTANT,
                help="Once: RFC 3339, from now, or a local time in --tz.",
            ),
            click.option("--on-demand", is_flag=True, help="Only when triggered."),
            click.option("--after", metavar="JOB,…", help="When these have ended, once a cycle."),
            click.option("--when", metavar="success|failure|any", help="[default: success]"),
            click.option(
                "--with-output/--without-output", default=None, help="Theirs is its payload."
            ),
            click.option("--tz", type=Guard(), metavar="ZONE", help="IANA name.  [default: UTC]"),
            click.option("--start", type=TimeType(), metavar=INSTANT, help="Not before."),
            click.option("--end", type=TimeType(), metavar=INSTANT, help="Not after."),
            click.option("--max-runs", metavar="N", help="End with the N-th run; 0: never."),
            click.option(
                "--exclude-calendar",
                multiple=True,
                metavar="NAME",
                help="Not what this calendar names; '' for none.",
            ),
            click.option(
                "--exclude-cron", multiple=True, metavar="EXPR", help="Not at these times."
            ),
            click.option(
                "--dst-gap", metavar="run-after|skip", help="A time that the clocks jump over."
            ),
            click.option(
                "--dst-overlap", metavar="first|second|both", help="One that comes twice."
            ),
            click.option("--jitter", metavar="DURATION", help="Each instant moves by less."),
            click.option("--overlap", metavar="skip|allow|allow:N|…", help="[default: skip]"),
            click.option("--catch-up", metavar="latest|all|none", help="[default: latest]"),
            click.option("--catch-up-window", metavar="1h"),
            click.option("--pause-after-failures", metavar="N", help="In a row."),
            click.option("--label", multiple=True, metavar="KEY=VALUE"),
        ]
    ):
        command = option(command)
    return command


def job_of(flags: Mapping[str, Any], argv: Sequence[str]) -> tuple[job_pb2.Job, list[str]]:
    """The job that the flags describe, and the names of the fields they set.

    Raises:
        Failure: with every problem, each by its flag.
    """
    form = _form(flags, argv)
    try:
        job = from_json(form, job_pb2.Job, strings=True)
    except FormErrors as errors:
        told = [_by_flag(problem) for problem in errors.problems]
        raise CommandFailure(told[0], reason="WRONG_FLAG", details=told[1:]) from None
    if flags.get("plugin_config") is not None:
        if flags.get("plugin") is None:
            raise CommandFailure(
                "--plugin-config goes with --plugin",
                reason="WRONG_FLAG",
                remedy="name the executor too: --plugin EXECUTOR",
            )
        job.plugin.config.CopyFrom(read_payload(flags["plugin_config"], "--plugin-config"))
    if flags.get("payload") is not None:
        job.payload.CopyFrom(read_payload(flags["payload"]))
    named = [*form, *(["payload"] if flags.get("payload") is not None else [])]
    named += notifications.cleared(flags)
    if "overlap" in named:
        named.append("overlap_limit")
    for field in ("exclude", "after"):
        if field in named:  # what of it isn't named stays
            named.remove(field)
            named += [f"{field}.{kind}" for kind in form[field]]
    return job, named


def need_action(job: job_pb2.Job) -> None:
    """Refuse work that says nothing of what to do."""
    if job.WhichOneof("action") is None:
        raise CommandFailure(
            "nothing to run",
            reason="NO_ACTION",
            remedy="give one of: -- COMMAND ARG…, --http URL, --grpc HOST:PORT, --python HANDLER,"
            " --plugin EXECUTOR",
        )


def _form(flags: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    form: dict[str, Any] = {
        field: flags[flag] for flag, field in PLAIN.items() if flags.get(flag) is not None
    }
    form |= {
        field: value
        for field, value in (
            ("cron", list(flags.get("cron") or ())),
            ("at", flags.get("at")),
            ("on_demand", bool(flags.get("on_demand"))),
            ("paused", bool(flags.get("paused"))),
            ("overlap", _overlap(flags.get("overlap"))),
            ("retry", _retry(flags)),
            ("catch_up", _of(flags, policy="catch_up", window="catch_up_window")),
            ("dst", _of(flags, gap="dst_gap", overlap="dst_overlap")),
            ("exclude", _exclude(flags)),
            ("after", _after(flags)),
            ("labels", _pairs("--label", flags.get("label"))),
            ("require", _matches("--require", flags.get("require"))),
            ("prefer", _matches("--prefer", flags.get("prefer"))),
            ("shell", _shell(flags, argv)),
            ("http", _http(flags)),
            ("grpc", _grpc(flags)),
            ("python", _python(flags)),
            ("plugin", {"executor": flags["plugin"]} if flags.get("plugin") is not None else None),
        )
        if value
    }
    return form | notifications.form(flags)


def _shell(flags: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    own = {
        "env": _pairs("--env", flags.get("env")),
        "cwd": flags.get("cwd"),
        "user": flags.get("user"),
        "limits": None if flags.get("python") is not None else resource_limits.form(flags),
    }
    shell = {key: value for key, value in own.items() if value}
    return {"argv": list(argv), **shell} if argv else shell


def _python(flags: Mapping[str, Any]) -> dict[str, Any]:
    if flags.get("python") is None:
        return {}
    limits = resource_limits.form(flags)
    return {"handler": flags["python"], **({"limits": limits} if limits else {})}


def _http(flags: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "url": flags.get("http"),
        "method": None if _is_grpcs(flags) else flags.get("method"),
        "headers": _pairs("--header", flags.get("header"), ":"),
        "body": flags.get("body"),
    }
    return {key: value for key, value in own.items() if value is not None and value != {}}


def _grpc(flags: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "endpoint": flags.get("grpc"),
        "method": flags.get("method") if _is_grpcs(flags) else None,
        "metadata": _pairs("--metadata", flags.get("metadata"), ":"),
    }
    return {key: value for key, value in own.items() if value is not None and value != {}}


def _is_grpcs(flags: Mapping[str, Any]) -> bool:
    """Whose method `--method` names; in an edit neither --http nor --grpc need stand beside it."""
    if flags.get("grpc") is not None or flags.get("http") is not None:
        return flags.get("grpc") is not None
    return "/" in (flags.get("method") or "")


def _retry(flags: Mapping[str, Any]) -> dict[str, Any]:
    written = [part for part in (flags.get("retry") or "").split(",") if part]
    retry: dict[str, Any] = _pairs("--retry", written)
    for several in ("retry_on", "fail_on"):
        if several in retry:
            retry[several] = [one.strip() for one in retry[several].split("+") if one.strip()]
    for flag in ("max_attempts", "backoff"):
        if flags.get(flag) is not None:
            retry[flag] = flags[flag]
    _refuse_zero("--max-attempts", retry.get("max_attempts"))
    _refuse_zero("--slots", flags.get("slots"))
    return retry


def _refuse_zero(flag: str, given: str | None) -> None:
    """On the wire 0 means: not given. Who writes it means something else."""
    if given is not None and given.strip().strip("0") == "":
        raise CommandFailure(
            f"{flag}: must be at least 1", reason="WRONG_FLAG", remedy=f"write {flag} 1"
        )


def _of(flags: Mapping[str, Any], **own: str) -> dict[str, Any]:
    """A field that holds others: each by the flag that sets it."""
    return {key: flags[flag] for key, flag in own.items() if flags.get(flag) is not None}


def _exclude(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """An empty one clears what is there, of its own kind."""
    given = {"calendars": flags.get("exclude_calendar"), "cron": flags.get("exclude_cron")}
    return {kind: [*filter(None, said)] for kind, said in given.items() if said} or None


def _after(flags: Mapping[str, Any]) -> dict[str, Any]:
    said = {key: flags[key] for key in ("when", "with_output") if flags.get(key) is not None}
    if flags.get("after") is not None:
        said["jobs"] = [name.strip() for name in flags["after"].split(",") if name.strip()]
    return said


def _overlap(text: str | None) -> Any:
    """`allow:3` is `{allow: 3}`."""
    word, colon, limit = (text or "").partition(":")
    return {word: limit.strip()} if colon else text


def _matches(flag: str, written: Sequence[str] | None) -> dict[str, list[str]]:
    """`region=eu,us`: one of these values."""
    return {key: value.split(",") for key, value in _pairs(flag, written).items()}


def _pairs(flag: str, written: Sequence[str] | None, sign: str = "=") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in written or ():
        key, found, value = one.partition(sign)
        if not found or not key:
            raise CommandFailure(
                f"{flag} {one!r} is no KEY{sign}VALUE",
                reason="WRONG_FLAG",
                remedy=f"write {flag} KEY{sign}VALUE",
            )
        if key.strip() in pairs:
            raise CommandFailure(
                f"{flag} {key.strip()} is given twice", reason="WRONG_FLAG", remedy="give it once"
            )
        pairs[key.strip()] = value.strip() if sign == ":" else value
    return pairs


def _by_flag(problem: Problem) -> str:
    flag = FLAG_OF.get(problem.where) or FLAG_OF.get(str(problem.path[0]) if problem.path else "")
    hint = f" ({problem.suggestion})" if problem.suggestion else ""
    inner = "" if problem.where in FLAG_OF or flag is None else f" {problem.where}"
    return f"{flag or problem.where}{inner}: {problem.message}{hint}"
