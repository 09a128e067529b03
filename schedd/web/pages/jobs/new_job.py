"""The form that creates a job: name, schedule, action, payload, priority."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from schedd.core.schedule.zones import UnknownZone, zone
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking, wrong
from schedd.web.rest.bodies import once
from schedkit.protojson import FormErrors, from_json, standard
from schedproto.v1 import job_pb2, job_service_pb2

SCHEDULES: Final = (
    ("cron", "Cron"),
    ("every", "Every"),
    ("at", "Once, at"),
    ("on_demand", "On demand"),
)
ACTIONS: Final = (("shell", "A program"), ("http", "An HTTP call"), ("python", "A Python handler"))
FIELDS: Final = (
    *("name", "schedule", "when", "time_zone"),
    *("action", "what", "method", "payload", "priority"),
)
"""Fields of the form; the address may fill them in."""
_ON_DEMAND: Final = "a job on demand has no schedule"
PRIORITIES: Final = ("HIGH", "MEDIUM", "LOW")


async def _read(asked: PageRequest) -> Shown:
    typed = {name: asked.query.get(name, "") for name in FIELDS}
    choices = {"schedules": SCHEDULES, "actions": ACTIONS, "priorities": PRIORITIES}
    return Shown("New job", typed | choices)


@taking(*FIELDS)
async def _create(asked: PageRequest) -> Done:
    job = job_of(asked.fields)
    job.namespace = asked.namespace
    request = job_service_pb2.CreateJobRequest(job=job, idempotency_key=asked.once)
    made = await asked.call(request, job_pb2.Job)
    return Done(f"{made.name} was created.", asked.link("jobs", made.name))


def job_of(fields: Mapping[str, str]) -> job_pb2.Job:
    """Return the job that a form describes. Raises InvalidArgumentError. Pure."""
    spec: dict[str, Any] = {"name": fields.get("name", "")}
    spec |= _schedule(fields)
    spec |= _action(fields)
    if priority := fields.get("priority"):
        spec["priority"] = priority
    if payload := fields.get("payload"):
        spec["payload"] = _json(payload, "payload")
    try:
        return from_json(spec, job_pb2.Job)
    except FormErrors as errors:
        first = errors.problems[0]
        raise wrong(first.where, first.what) from errors


def _schedule(fields: Mapping[str, str]) -> dict[str, Any]:
    kind, when = fields.get("schedule", ""), fields.get("when", "")
    time_zone = fields.get("time_zone", "")
    if kind == "on_demand":
        _nothing("when", when, _ON_DEMAND)
        _nothing("time_zone", time_zone, _ON_DEMAND)
        return {"on_demand": True}
    if kind not in dict(SCHEDULES):
        raise wrong("schedule", "no schedule is chosen", "choose a schedule")
    if not when:
        raise wrong(
            kind,
            "the schedule's value is missing",
            "give the cron expression, the interval or the time",
        )
    match kind:
        case "cron":
            return {"cron": [when], "time_zone": time_zone or "UTC"}
        case "at":
            return {"at": _instant(when, time_zone)}
    _nothing("time_zone", time_zone, "an interval doesn't depend on the time zone")
    return {kind: when}


def _instant(when: str, time_zone: str) -> str:
    """Return a time for the API. Without an offset it is a local time in the zone."""
    try:
        local = datetime.fromisoformat(when)
    except ValueError:
        return when  # the call returns the error
    if ":" not in when:
        return when  # a date alone isn't a time
    if local.tzinfo is not None:
        _nothing("time_zone", time_zone, f"{when} has its own offset from UTC")
        return local.isoformat()
    try:
        place = zone(time_zone or "UTC")
        found = [each.astimezone(place.info) for each in place.instants(local)]
    except UnknownZone as error:
        raise wrong("time_zone", f"{error} ({error.hint})") from error
    except (ValueError, OverflowError) as error:
        raise wrong("at", f"{when} is out of range: give a time in the years 1 to 9999") from error
    if not found:
        raise wrong(
            "at",
            f"{when} doesn't exist in {place.name}, because the clocks skip it: give another time",
        )
    if len(found) > 1:
        either = " or ".join(each.isoformat() for each in found)
        raise wrong(
            "at",
            f"{when} occurs twice in {place.name}, because the clocks go back: write {either}, and"
            " clear time_zone",
        )
    return found[0].astimezone(UTC).isoformat()


def _nothing(field: str, typed: str, why: str) -> None:
    """Raise InvalidArgumentError for a field that would have no effect."""
    if typed:
        raise wrong(
            field, f"the field has no effect: {why}", "clear this field; nothing was stored"
        )


def _action(fields: Mapping[str, str]) -> dict[str, Any]:
    kind, what = fields.get("action", ""), fields.get("what", "")
    if not what:
        raise wrong(
            kind or "action", "the action's value is missing", "give the program, URL or handler"
        )
    match kind:
        case "shell":
            try:
                return {"shell": {"argv": shlex.split(what)}}
            except ValueError as error:
                raise wrong(
                    "shell",
                    f"the command can't be split into words: {error}; quote the words as in a"
                    " shell",
                ) from error
        case "http":
            return {"http": {"method": fields.get("method") or "POST", "url": what}}
        case "python":
            return {"python": {"handler": what}}
    raise wrong(
        "action", "the action is invalid: choose a program, an HTTP call or a Python handler"
    )


def _json(text: str, field: str) -> Any:
    """Parse JSON as the body of a request is parsed."""
    try:
        return standard.loads(text, pairs=once)
    except (standard.TooDeep, standard.TooMany) as beyond:
        raise wrong(field, str(beyond)) from beyond
    except ValueError as error:
        raise wrong(field, f"the value isn't valid JSON: {error}; correct the JSON") from error


PAGE: Final = Page("/new-job", "Jobs", "new_job", _read, asks=FIELDS, every=None)
CREATE: Final = Action("/new-job", _create, again=PAGE)
