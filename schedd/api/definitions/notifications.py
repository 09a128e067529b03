"""Check the notifications of a job, also against the means that this member is configured with."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from google.protobuf.message import Message

from schedd.api.definitions.actions import is_url
from schedd.api.errors import FieldViolation, refuse, too_many
from schedd.api.services import Services
from schedd.runtime.job_codec import seconds
from schedproto.v1 import job_pb2

FIELDS: Final = ("on_failure", "on_recovery", "on_dead_letter", "on_late")
FAILURE_FIELDS: Final = ("on_failure", "on_dead_letter")
MOST_ADDRESSES: Final = 20
MOST_ARGUMENTS: Final = 50
LONGEST: Final = timedelta(days=366)
MOST_IN_A_ROW: Final = 1_000_000
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,190}", re.ASCII
)


def violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    for field, said in _given(job):
        yield from _target_violations(field, said)
        yield from _frequency_violations(field, said)
    if job.HasField("on_recovery") and not any(name in FAILURE_FIELDS for name, _ in _given(job)):
        problem = "requires on_failure or on_dead_letter"
        yield FieldViolation("on_recovery", problem)


def check_means(services: Services, job: job_pb2.Job, old: job_pb2.Job | None = None) -> None:
    """Raise InvalidArgument for means that this member's configuration doesn't allow. Notifications
    of the `old` job are accepted: its other fields must stay editable.
    """
    kept = dict(_given(old)) if old is not None else {}
    wrong: list[FieldViolation] = []
    for field, said in _given(job):
        if said == kept.get(field):
            continue
        if said.command and said.command[0] not in services.means.commands:
            problem = (
                f"{said.command[0][:140]!r} isn't among the programs that members may run"
                " (notifications.commands of schedd.toml)"
            )
            wrong.append(FieldViolation(f"{field}.command", problem))
        if said.email and not services.means.mail:
            problem = "no mail server is configured (smtp.host of schedd.toml)"
            wrong.append(FieldViolation(f"{field}.email", problem))
    refuse(
        wrong, "NO_MEANS", "ask the cluster's operator to change schedd.toml, or notify by webhook"
    )


def _given(job: job_pb2.Job) -> Iterator[tuple[str, job_pb2.Notification]]:
    plain: Message = job
    for field in FIELDS:
        if plain.HasField(field):
            yield field, getattr(plain, field)


def _target_violations(field: str, said: job_pb2.Notification) -> Iterator[FieldViolation]:
    if not (said.webhook or said.command or said.email):
        yield FieldViolation(field, "has no target: give webhook, command or email")
    if said.webhook and (not is_url(said.webhook) or "@" in said.webhook.split("/")[2]):
        problem = f"{said.webhook[:140]!r} isn't an http or https URL without a user"
        yield FieldViolation(f"{field}.webhook", problem)
    elif any(sign.isspace() for sign in said.webhook):
        problem = f"{said.webhook[:140]!r} has white space: write a space as %20"
        yield FieldViolation(f"{field}.webhook", problem)
    if said.command and not said.command[0].startswith("/"):
        problem = f"{said.command[0][:140]!r} isn't an absolute path"
        yield FieldViolation(f"{field}.command", problem)
    if len(said.command) > MOST_ARGUMENTS or any("\0" in word for word in said.command):
        problem = f"has a NUL character, or more than {MOST_ARGUMENTS} words"
        yield FieldViolation(f"{field}.command", problem)
    yield from too_many(f"{field}.email", len(said.email), "addresses", MOST_ADDRESSES)
    for address in said.email[:MOST_ADDRESSES]:
        if "=?" in address or not _ADDRESS.fullmatch(address):
            yield FieldViolation(f"{field}.email", f"{address[:140]!r} isn't a valid address")


def _frequency_violations(field: str, said: job_pb2.Notification) -> Iterator[FieldViolation]:
    if said.threshold and field not in FAILURE_FIELDS:
        problem = "is allowed in on_failure and on_dead_letter only: it counts failures"
        yield FieldViolation(f"{field}.threshold", problem)
    elif not 0 <= said.threshold <= MOST_IN_A_ROW:
        yield FieldViolation(f"{field}.threshold", f"must be from 1 to {MOST_IN_A_ROW:,}")
    if not timedelta(0) <= seconds(said.min_interval) <= LONGEST:
        yield FieldViolation(
            f"{field}.min_interval", "must be a positive duration of at most 366 days"
        )
    if said.HasField("after"):
        if field != "on_late":
            yield FieldViolation(f"{field}.after", "is allowed in on_late only")
        elif not timedelta(0) < seconds(said.after) <= LONGEST:
            yield FieldViolation(
                f"{field}.after", "must be a positive duration of at most 366 days"
            )
