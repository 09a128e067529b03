"""Options that describe an action and its schedule, and the job they result in.

Values stay text and are parsed as in REST and manifests (`schedkit.protojson`), so that all three
mean the same. An error names the option it came from.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from schedctl.failure import CommandFailure, standard_input, wrong_flag
from schedctl.options.global_options import flag_of, option
from schedctl.options.types import GUARD, LOCAL_TIME, TIME, TIME_TYPE
from schedkit.protojson import FormErrors, Problem, from_json, standard
from schedkit.protojson.problems import did_you_mean
from schedproto.v1 import common_pb2, job_pb2

# Sizes as people write them: `64MiB`, `1GiB`. A bare number is bytes.
#
# Units are powers of 1,024. MB and M are rejected, because they are ambiguous.

_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SHAPE: Final = re.compile(rf"([0-9]{{1,18}})\s*({'|'.join(_UNITS)})?", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes of a size. Raises ValueError: with a message for the author of the text."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"the size {text!r} isn't valid; write a whole number of bytes, or with KiB, MiB,"
            " GiB or TiB, such as 64MiB"
        )
    return int(match[1]) * _UNITS.get(match[2], 1)


_FLAGS: Final = {
    "memory_bytes": "--limit-memory",
    "processes": "--limit-processes",
    "files": "--limit-files",
}
LIMIT_FLAGS: Final = {
    f"{action}.limits.{limit}": flag
    for action in ("shell", "python")
    for limit, flag in _FLAGS.items()
}
"""Fields to the options that set them."""


def limits_form(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that the options name. Raises CommandFailure: a limit isn't valid."""
    limits = {
        limit: flags[flag[2:].replace("-", "_")]
        for limit, flag in _FLAGS.items()
        if flags.get(flag[2:].replace("-", "_")) is not None
    }
    if "memory_bytes" in limits:
        try:
            limits["memory_bytes"] = str(parse_size(limits["memory_bytes"]))
        except ValueError as wrong:
            raise wrong_flag(
                f"--limit-memory: {wrong}", "write for example --limit-memory 64MiB"
            ) from None
    for limit, flag in _FLAGS.items():
        if limits.get(limit, "1").strip().strip("0") == "":
            raise wrong_flag(
                f"{flag} 0 isn't valid: a limit must be at least 1",
                "to remove the limit of a job, apply a manifest without this limit: schedctl"
                " apply -f FILE",
            )
    return limits


F = TypeVar("F", bound=Callable[..., Any])

NOTICES: Final = {
    "on_failure": "Notification to send after a run failed for good",
    "on_recovery": "Notification to send at the first success after a notified failure",
    "on_dead_letter": "Notification to send when a run becomes a dead letter",
    "on_late": "Notification to send when a run hasn't started within `after` (1m) of its due time",
}
_NOTICE_KEYS: Final = ("webhook", "email", "command", "threshold", "min_interval", "after")
_NOTICE: Final = "webhook=URL|email=…"

_SAME: Final = (
    "priority timeout heartbeat_timeout kill_after run_timeout start_deadline delivery placement"
    " on_lease_lost slots retention pool every phase anchor start end jitter max_runs"
    " pause_after_failures"
)
PLAIN: Final = {**{name: name for name in _SAME.split()}, "tz": "time_zone"}
"""Options, by parameter name, whose text is a field of the job."""

_NAMED: Final = ("after", "at", "on_demand", "overlap", "prefer", "require", "retry")
FLAG_OF: Final = {
    **{name: flag_of(name) for name in (*_NAMED, *NOTICES)},
    **{field: flag_of(flag) for flag, field in PLAIN.items()},
    "retry.max_attempts": "--max-attempts",
    "retry.backoff": "--backoff",
    "after.jobs": "--after",
    "after.when": "--when",
    "after.with_output": "--with-output",
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
    "labels": "--label",
    **LIMIT_FLAGS,
}
"""Fields to the options that set them."""


_WORK: Final = {
    "--http URL": "URL that the run calls (action http).  [default: none]",
    "--grpc HOST:PORT": "Address of the gRPC service that the run calls (action grpc);"
    " grpcs://HOST:PORT uses TLS.  [default: none]",
    "--method": "Method to call: an HTTP method with --http, package.Service/Method with --grpc."
    "  [default: POST with --http, JobHandler.Run with --grpc]",
    "--header 'NAME: VALUE'": "Header of the HTTP request; repeatable.  [default: none]",
    "--metadata 'NAME: VALUE'": "Metadata of the gRPC call; repeatable.  [default: none]",
    "--body": "Body of the HTTP request.  [default: the payload]",
    "--python HANDLER": "Registered name of the Python handler to run (action python)."
    "  [default: none]",
    "--plugin EXECUTOR": "Name of the plug-in executor that executes the run (action plugin)."
    "  [default: none]",
    "--plugin-config JSON|@FILE|-": "Configuration that the plug-in executor receives."
    "  [default: none]",
    "--env KEY=VALUE": "Environment variable of the command; repeatable.  [default: none]",
    "--cwd DIR": "Working directory of the command."
    "  [default: the home folder of the command's user]",
    "--user NAME": "Operating-system user that runs the command.  [default: the worker's user]",
    "--limit-memory 64MiB": "Memory limit of an attempt (its command or its handler's process),"
    " in bytes or as 64MiB.  [default: no limit]",
    "--limit-processes N": "Highest number of processes and threads that an attempt may have at"
    " once.  [default: no limit]",
    "--limit-files N": "Highest number of open files in each process of an attempt."
    "  [default: no limit]",
    "--payload JSON|@FILE|-": "Payload: the input of each run.  [default: no payload]",
    "--priority high|medium|low": "Priority of the runs: runs with a higher priority are created"
    " and started first.  [default: medium]",
    "--retry KEY=VALUE,…": "Retry policy, such as max_attempts=4,retry_on=75+5xx to retry after"
    " exit code 75 and HTTP 5xx; other keys: backoff, factor, max, jitter, fail_on."
    "  [default: 4 attempts, backoff 10s]",
    "--max-attempts N": "Highest number of attempts of a run.  [default: 4]",
    "--backoff 10s": "Wait before the second attempt.  [default: 10s]",
    "--timeout 1h": "Time limit of one attempt.  [default: 1h]",
    "--heartbeat-timeout 1m": "Longest time between two heartbeats of a plug-in or Python"
    " handler; if none arrives in this time, the worker ends the attempt.  [default: no limit]",
    "--kill-after 10s": "Time from SIGTERM to SIGKILL when the worker ends an attempt.  [default:"
    " 10s]",
    "--run-timeout DURATION": "Time limit of a run, including all its attempts and the waits"
    " between them.  [default: no limit]",
    "--start-deadline DURATION": "Longest time that a run waits until it is sent to a worker; a"
    " run that waits longer becomes MISSED and doesn't run.  [default: no limit]",
    "--delivery at-least-once|at-most-once": "Delivery guarantee: start a run again when its"
    " worker was lost (at-least-once), or end it as failed (at-most-once).  [default:"
    " at-least-once]",
    "--on-lease-lost finish|kill": "Treatment of a running attempt when its worker has lost the"
    " connection to the cluster: let the attempt finish, or kill it.  [default: finish]",
    "--slots N": "Slots (places for runs) that a run takes on its worker.  [default: 1]",
    "--retention 30d": "Time for which ended runs are kept.  [default: the cluster's setting]",
    "--pool NAME": "Pool whose limits the runs share.  [default: no pool]",
    "--require KEY=VALUE,…": "Label that a worker must have to execute the run, with one of the"
    " values; repeatable.  [default: no label]",
    "--prefer KEY=VALUE,…": "Label of workers that get the run if one of them has a free slot;"
    " repeatable.  [default: no label]",
    "--placement spread|pack|sticky|broadcast": "Rule that chooses a worker: most free slots"
    " (spread), fewest free slots (pack), or the same one as before (sticky); broadcast runs the"
    " job on every matching worker.  [default: spread]",
}
"""Options for the action, its attempts and limits, and its placement: flag and value, and help."""

_SUBMITTED: Final = _WORK | {
    written: _WORK[written].replace("[default: 4", f"[default: 1{unit}; with a retry option 4")
    for written, unit in (("--retry KEY=VALUE,…", " attempt"), ("--max-attempts N", ""))
}
"""Options of a submit, which makes one attempt unless an option of retries is given."""

_SCHEDULE: Final = {
    "--cron EXPR": "Cron expression of the schedule. Repeatable: the job runs at the times of"
    " each expression.  [default: none]",
    "--every 30s": "Interval between scheduled times, counted from 1970-01-01T00:00:00Z. "
    " [default: none]",
    "--phase DURATION": "Offset that is added to each scheduled time of --every.  [default: 0s]",
    "--anchor LOCAL": "Local time in --tz from which the intervals of --every are counted, such"
    " as 2026-01-06T09:00:00.  [default: 1970-01-01T00:00:00 UTC]",
    f"--at {TIME}": "Time of a single run: RFC 3339, a local time in --tz, or +3s from now."
    "  [default: none]",
    "--on-demand": "Use no schedule: only triggers start runs.",
    "--after JOB,…": "Parent jobs in a chain: the job runs each time that all of these jobs have"
    " ended.  [default: none]",
    "--when success|failure|any": "Outcome with which the parents in --after must end, so that"
    " the job runs.  [default: success]",
    "--with-output/--without-output": "Use the results of the parents in --after as the payload."
    "  [default: without]",
    "--tz ZONE": "IANA time zone in which the schedule is read.  [default: UTC]",
    f"--start {TIME}": "Earliest scheduled time; +3s is 3 s from now.  [default: no limit]",
    f"--end {TIME}": "Latest scheduled time, inclusive; +3s is 3 s from now.  [default: no limit]",
    "--max-runs N": "Number of runs after which the schedule ends; 0 means no limit.  [default: 0]",
    "--exclude-calendar NAME": "Calendar whose times are excluded; repeatable."
    "  [default: no calendar]",
    "--exclude-cron EXPR": "Cron expression that excludes the times it matches; repeatable."
    "  [default: none]",
    "--dst-gap run-after|skip": "Policy for a scheduled time that a change to summer time skips:"
    " run after the skipped hour, or not at all.  [default: run-after]",
    "--dst-overlap first|second|both": "Policy for a scheduled time that a change to winter time"
    " repeats: run at the first time, the second, or both.  [default: first]",
    "--jitter DURATION": "Upper limit of the delay that is added to each scheduled time."
    "  [default: 0s]",
    "--overlap skip|allow|allow:N|…": "Overlap policy for a run that is ready while another run"
    " of the job is in progress. More policies: buffer_one, buffer_all, cancel_other,"
    " terminate_other.  [default: skip]",
    "--catch-up latest|all|none": "Catch-up policy for scheduled times that the cluster missed,"
    " for example in an outage: run the latest of them, all, or none.  [default: latest]",
    "--catch-up-window 1h": "Age up to which the catch-up policy applies; older scheduled times"
    " become MISSED and don't run.  [default: 1h]",
    "--pause-after-failures N": "Number of consecutive failed runs after which the job is"
    " paused; 0 means never.  [default: 0]",
    "--label KEY=VALUE": "Label of the job; repeatable.  [default: none]",
}
"""Options for the schedule: exactly one of cron, every, at, on-demand, after."""


_DEFAULT: Final = re.compile(r" *\[default: .*\]$")
_EMPTY: Final = {
    "--pool NAME": "'' removes the job from its pool",
    "--exclude-calendar NAME": "'' removes all calendars",
    "--exclude-cron EXPR": "'' removes all exclusions by cron",
}
"""Options of an edit that an empty text clears."""
_REPLACES: Final = "The given ones replace all earlier ones."


def _edited(table: Mapping[str, str]) -> dict[str, str]:
    """Return the options of an edit: a field without an option keeps its value."""
    edited = {}
    for written, text in table.items():
        kept = _DEFAULT.sub("", text)
        kept = kept.replace("repeatable.", f"repeatable. {_REPLACES}")
        cleared = f" {_EMPTY[written]}." if written in _EMPTY else ""
        edited[written] = text if kept == text else f"{kept}{cleared}  [default: unchanged]"
    return edited


def _options(table: Mapping[str, str], **settings: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that adds the options of a table, some with more settings."""

    def decorate(command: F) -> F:
        for written, text in reversed([*table.items()]):
            name = written.partition(" ")[0].partition("/")[0].removeprefix("--").replace("-", "_")
            command = option(written, text, **settings.get(name, {}))(command)
        return command

    return decorate


_MANY: Final = {"multiple": True}
_TIME: Final = {"type": TIME_TYPE}
_SETTINGS: Final[dict[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("header", "metadata", "env", "require", "prefer", "cron", "label"), _MANY),
    **dict.fromkeys(("exclude_calendar", "exclude_cron"), _MANY),
    **dict.fromkeys(("start", "end"), _TIME),
    "at": {"type": LOCAL_TIME},
    "on_demand": {"is_flag": True},
    "with_output": {"default": None},
    "tz": {"type": GUARD},
}
work_options: Final = _options(_WORK, **_SETTINGS)
submit_options: Final = _options(_SUBMITTED, **_SETTINGS)
schedule_options: Final = _options(_SCHEDULE, **_SETTINGS)
edit_options: Final = _options(_edited({**_SCHEDULE, **_WORK}), **_SETTINGS)


def job_of(flags: Mapping[str, Any], argv: Sequence[str]) -> tuple[job_pb2.Job, list[str]]:
    """Return the job that the options describe, and the names of the fields they set. Raises
    CommandFailure: with every problem, each named by its option.
    """
    form = _form(flags, argv)
    try:
        job = from_json(form, job_pb2.Job, strings=True)
    except FormErrors as errors:
        first, *others = map(_by_flag, errors.problems)
        raise CommandFailure(first, reason="WRONG_FLAG", details=others) from None
    if flags.get("plugin_config") is not None:
        if flags.get("plugin") is None:
            raise wrong_flag("--plugin-config needs --plugin", "add --plugin EXECUTOR")
        job.plugin.config.CopyFrom(read_payload(flags["plugin_config"], "--plugin-config"))
    if flags.get("payload") is not None:
        job.payload.CopyFrom(read_payload(flags["payload"]))
    named = [*form, *(["payload"] if flags.get("payload") is not None else [])]
    named += _cleared(flags)
    if "overlap" in named:
        named.append("overlap_limit")
    for field in ("exclude", "after"):
        if field in named:  # keep the parts that no option names
            named.remove(field)
            named += [f"{field}.{kind}" for kind in form[field]]
    return job, named


def need_action(job: job_pb2.Job) -> None:
    if job.WhichOneof("action") is None:
        raise CommandFailure(
            "no action is given: there is nothing to run",
            reason="NO_ACTION",
            remedy="give one of: -- COMMAND ARG…, --http URL, --grpc HOST:PORT, --python HANDLER,"
            " --plugin EXECUTOR",
        )


def _form(flags: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    plain = _set(**{field: flags.get(flag) for flag, field in PLAIN.items()})
    given = flags.get
    word, colon, limit = (given("overlap") or "").partition(":")
    after = _set(when=given("when"), with_output=given("with_output"))
    if (parents := given("after")) is not None:
        after["jobs"] = [name.strip() for name in parents.split(",") if name.strip()]
    excluded = {"calendars": given("exclude_calendar"), "cron": given("exclude_cron")}
    method, limits = given("method"), limits_form(flags)
    http_method, grpc_method = (None, method) if _is_grpcs(flags) else (method, None)
    shell = {
        "argv": list(argv),
        "env": _pairs("--env", given("env")),
        "cwd": given("cwd"),
        "user": given("user"),
        "limits": limits if given("python") is None else None,
    }
    headers, metadata = _pairs("--header", given("header"), ":"), given("metadata")
    nested = {
        "cron": list(given("cron") or ()),
        "at": given("at"),
        "on_demand": bool(given("on_demand")),
        "paused": bool(given("paused")),
        "overlap": {word: limit.strip()} if colon else given("overlap"),
        "retry": _retry(flags),
        "catch_up": _set(policy=given("catch_up"), window=given("catch_up_window")),
        "dst": _set(gap=given("dst_gap"), overlap=given("dst_overlap")),
        # an empty value clears the list of its kind
        "exclude": {kind: [*filter(None, one)] for kind, one in excluded.items() if one},
        "after": after,
        "labels": _pairs("--label", given("label")),
        "require": _matches("--require", given("require")),
        "prefer": _matches("--prefer", given("prefer")),
        "shell": {key: value for key, value in shell.items() if value},
        "http": _set(
            url=given("http"), method=http_method, headers=headers or None, body=given("body")
        ),
        "grpc": _set(
            endpoint=given("grpc"),
            method=grpc_method,
            metadata=_pairs("--metadata", metadata, ":") or None,
        ),
        "python": _set(handler=given("python"), limits=limits or None)
        if given("python") is not None
        else None,
        "plugin": _set(executor=given("plugin")),
    }
    form = plain | {field: value for field, value in nested.items() if value}
    return form | _notices(flags)


def _set(**values: Any) -> dict[str, Any]:
    """Return the values that are given."""
    return {key: value for key, value in values.items() if value is not None}


def _is_grpcs(flags: Mapping[str, Any]) -> bool:
    """Return whether `--method` is a gRPC method; an edit may have neither --http nor --grpc."""
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
    """Reject 0: in protobuf it means that the field isn't set."""
    if given is not None and given.strip().strip("0") == "":
        raise wrong_flag(
            f"{flag} must be at least 1, not 0", f"write {flag} 1, or leave the option out"
        )


def _matches(flag: str, written: Sequence[str] | None) -> dict[str, list[str]]:
    """Return labels with their allowed values: `region=eu,us`."""
    return {key: value.split(",") for key, value in _pairs(flag, written).items()}


def _pairs(flag: str, written: Sequence[str] | None, sign: str = "=") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in written or ():
        key, found, value = one.partition(sign)
        if not found or not key:
            raise wrong_flag(
                f"{flag} {one!r} isn't valid: it has no key, or no {sign!r} after the key",
                f"write {flag} KEY{sign}VALUE",
            )
        if key.strip() in pairs:
            raise wrong_flag(
                f"{flag} {key.strip()} is given twice", f"give {flag} {key.strip()} once"
            )
        pairs[key.strip()] = value.strip() if sign == ":" else value
    return pairs


def _by_flag(problem: Problem) -> str:
    flag = FLAG_OF.get(problem.where) or FLAG_OF.get(str(problem.path[0]) if problem.path else "")
    hint = f" ({problem.suggestion})" if problem.suggestion else ""
    inner = "" if problem.where in FLAG_OF or flag is None else f" {problem.where}"
    return f"{flag or problem.where}{inner}: {problem.message}{hint}"


def notice_options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds an option for each kind of notification; each is repeatable."""

    def decorate(command: F) -> F:
        for field, text in reversed(NOTICES.items()):
            flag, shown = flag_of(field), f"{text}; repeatable.{default}"
            command = click.option(flag, multiple=True, metavar=_NOTICE, help=shown)(command)
        return command

    return decorate


def _notices(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that these options describe."""
    return {
        field: _notice(flag_of(field), flags[field])
        for field in NOTICES
        if flags.get(field) and field not in _cleared(flags)
    }


def _cleared(flags: Mapping[str, Any]) -> list[str]:
    """Return the notifications to remove: their option is empty, as in `--on-late ''`."""
    return [field for field in NOTICES if tuple(flags.get(field) or ()) == ("",)]


def _notice(flag: str, written: Sequence[str]) -> dict[str, Any]:
    notice: dict[str, Any] = {}
    for one in written:
        key, equals, value = one.partition("=")
        if not equals or key not in _NOTICE_KEYS:
            hint = did_you_mean(key, _NOTICE_KEYS) if equals else ""
            raise wrong_flag(
                f"{flag} {one!r} isn't valid: it must be KEY=VALUE with one of the keys"
                f" {', '.join(_NOTICE_KEYS)}",
                hint or f"write {flag} {_NOTICE}",
            )
        if key == "email":
            notice.setdefault("email", []).append(value)
        elif key in notice:
            raise wrong_flag(f"{flag} {key} is given twice", f"give {key} once")
        else:
            notice[key] = _words(flag, value) if key == "command" else value
    return notice


def _words(flag: str, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise wrong_flag(
            f"the command of {flag} can't be split into words: {error}",
            "quote the words as in a shell",
        ) from None


def read_payload(given: str, flag: str = "--payload") -> common_pb2.Payload:
    """Read a payload: `-` is standard input, `@FILE` a file, anything else JSON itself. Standard
    input and files may hold any bytes; a file named *.json must hold JSON.
    """
    if given != "-" and not given.startswith("@"):
        try:
            return _json_payload(given, flag)
        except ValueError as error:
            remedy = """write '"text"' for a string, @FILE for a file, - for standard input"""
            raise wrong_flag(f"the value of {flag} isn't valid JSON: {error}", remedy) from None
    try:
        content = standard_input() if given == "-" else Path(given[1:]).read_bytes()
    except OSError as error:
        raise CommandFailure(
            f"{flag} {given} can't be read: {error}",
            reason="NO_FILE",
            remedy="check the file's name and permissions",
        ) from error
    try:
        return _json_payload(content.decode(), flag)
    except ValueError as error:
        if given.endswith(".json"):
            remedy = "correct the JSON; or, to send the bytes unchanged, rename the file"
            raise wrong_flag(f"the file {given[1:]} isn't valid JSON: {error}", remedy) from None
        return common_pb2.Payload(raw=content)


def _json_payload(text: str, flag: str) -> common_pb2.Payload:
    try:
        standard.loads(text)  # only checked: the text is kept byte for byte
    except standard.TooDeep as deep:
        remedy = "use fewer nested levels; or store the data elsewhere, and pass its address"
        raise wrong_flag(f"{flag} {deep}", remedy) from None
    return common_pb2.Payload(json=text)
