"""The kind of a file, detected by its content: never by its name or its first key alone.

    text ─▶ a manifest │ a crontab │ a format of another scheduler, with the mapping of its fields

A format of another scheduler is rejected by name; it is never read as another kind.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import yaml


class FileKind(Enum):
    """The kinds of files that can be read."""

    MANIFEST = "manifest"
    CRONTAB = "crontab"


class Foreign(str):
    """A sentence that names the format of another scheduler and maps its fields."""

    __slots__ = ()


KUBERNETES: Final = Foreign(
    "a Kubernetes CronJob: schedule → cron, timeZone → time_zone, "
    "concurrencyPolicy → overlap (Allow: allow, Forbid: skip, Replace: cancel_other), "
    "suspend → paused, startingDeadlineSeconds → catch_up.window, the container → shell or http"
)
SYSTEMD: Final = Foreign(
    "a systemd timer: OnCalendar → cron, OnUnitActiveSec → every, "
    "RandomizedDelaySec → jitter, Persistent → catch_up, ExecStart of the service → shell"
)
CELERY: Final = Foreign(
    "a schedule of Celery beat: schedule → every (seconds) or cron, task → python, "
    "args and kwargs → payload, expires → start_deadline, enabled → paused"
)
ANACRONTAB: Final = Foreign(
    "an anacrontab: period in days → every with catch_up.policy latest, delay → jitter, "
    "job-identifier → name, command → shell"
)
GITHUB: Final = Foreign(
    "a GitHub workflow: on.schedule.cron → cron (UTC), on.schedule.timezone → time_zone, "
    "steps.run → shell"
)
DKRON: Final = Foreign(
    "a Dkron job: schedule → cron (@at: at), timezone → time_zone, "
    "concurrency → overlap (allow, forbid: skip), retries → retry.max_attempts, "
    "executor_config → shell or http, disabled → paused"
)
LAUNCHD: Final = Foreign(
    "a launchd property list: StartCalendarInterval → cron, StartInterval → every, "
    "ProgramArguments → shell.argv"
)
COMPOSE: Final = Foreign(
    "a Docker Compose file: a job of its own per scheduled service, its command → shell.argv"
)
_OTHER_OBJECT: Final = (
    "a Kubernetes object (kind {kind}), not a manifest of a job, pool or calendar"
)

_MANIFEST: Final = re.compile(
    r"""---|%YAML|[{\[]|-(?:\s|$)|[!&]\S|\?\s|<<\s*:|["']?[A-Za-z_][\w.-]*["']?\s*:(?:\s|$)"""
)
"""The start of the first line of a YAML or JSON document; no line of a crontab matches."""
_CRONTAB: Final = re.compile(
    r"-?(?:@\w+|[*\d][\w*/,~#-]*\s+(?:\S+\s+){3}\S+)\s+\S|[A-Za-z_]\w*\s*="
)
"""An entry of a crontab, or a variable."""
_SECTION: Final = re.compile(r"\[(Unit|Timer|Install|Service)\]")
_ANACRON: Final = re.compile(r"(?:\d{1,4}|@\w+)\s+\d{1,5}\s+([A-Za-z][\w.-]*)\s+\S")
_FIELD_WORD: Final = re.compile(r"l|lw|wl|w\d+|l-\d+|h.*", re.IGNORECASE)
_ANACRON_VARIABLE: Final = re.compile(r"(START_HOURS_RANGE|RANDOM_DELAY)\s*=")
_SHOWN: Final = re.compile(r"[\w.-]{1,60}", re.ASCII)


def kind_of(text: str) -> FileKind | Foreign | None:
    """Return the kind of a text, by its lines; None if it is empty or unknown."""
    lines = _significant(text)
    if not lines:
        return None
    if any(_SECTION.fullmatch(line) for line in lines):
        return SYSTEMD
    if lines[0].startswith(("<?xml", "<!DOCTYPE plist", "<plist")):
        return LAUNCHD
    if _MANIFEST.match(lines[0]):
        return FileKind.MANIFEST
    if _is_anacrontab(lines):
        return ANACRONTAB
    return FileKind.CRONTAB if any(_CRONTAB.match(line) for line in lines) else None


def _significant(text: str) -> list[str]:
    """Return the lines that aren't blank or comments, stripped."""
    lines = (line.strip() for line in text.removeprefix("\ufeff").split("\n"))
    return [line for line in lines if line and line[0] not in "#;"]


def _is_anacrontab(lines: Sequence[str]) -> bool:
    entries = [line for line in lines if not re.match(r"[A-Za-z_]\w*\s*=", line)]
    found = [_ANACRON.match(line) for line in entries]
    named = [one for one in found if one and not _FIELD_WORD.fullmatch(one[1])]
    if any(_ANACRON_VARIABLE.match(line) for line in lines):
        return bool(named)
    return bool(entries) and len(named) == len(entries)


def foreign_document(value: Any) -> str:
    """Return the format of another scheduler that a document has; empty if none."""
    for judged in (value, value[0] if isinstance(value, list) and value else None):
        if isinstance(judged, Mapping):
            for recognise in _DOCUMENTS:
                if found := recognise(judged):
                    return found
    return ""


def _kubernetes(value: Mapping[str, Any]) -> str:
    if "apiVersion" not in value:
        return ""
    items = value.get("items")
    kinds = [value.get("kind")]
    if isinstance(items, list):
        kinds += [item.get("kind") for item in items if isinstance(item, Mapping)]
    if {"CronJob", "CronWorkflow", "ScheduledJob"} & {str(kind) for kind in kinds}:
        return KUBERNETES
    kind = str(value.get("kind") or "unknown")
    return _OTHER_OBJECT.format(kind=kind if _SHOWN.fullmatch(kind) else "unknown")


def _celery(value: Mapping[str, Any]) -> str:
    if str(value.get("model", "")).startswith("django_celery_beat."):
        return CELERY
    if {"beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE"} & value.keys():
        return CELERY
    inner = [*value.values()]
    tasks = inner and all(
        isinstance(one, Mapping) and "task" in one and "schedule" in one for one in inner
    )
    return CELERY if tasks or ("task" in value and "schedule" in value) else ""


_DKRON: Final = frozenset({"executor", "executor_config"})
_DOCUMENTS: Final[Sequence[Callable[[Mapping[str, Any]], str]]] = (
    _kubernetes,
    lambda value: GITHUB if "on" in value and isinstance(value.get("jobs"), Mapping) else "",
    _celery,
    lambda value: DKRON if "schedule" in value and _DKRON & value.keys() else "",
    lambda value: COMPOSE if isinstance(value.get("services"), Mapping) else "",
)


def plain_value(node: yaml.Node, depth: int = 4) -> Any:
    """Return the outer levels of a node as dicts, lists and texts; deeper ones as None."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if depth == 0:
        return None
    if isinstance(node, yaml.SequenceNode):
        return [plain_value(one, depth - 1) for one in node.value[:100]]
    return {
        str(key.value): plain_value(inner, depth - 1)
        for key, inner in node.value[:1000]
        if isinstance(key, yaml.ScalarNode)
    }
