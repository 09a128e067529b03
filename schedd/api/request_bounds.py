"""Bounds of every field of every user call, over gRPC and REST alike.

A call can handle any value within these bounds. Where a call has a stricter rule of its own (the
spelling of a name, at most 1,000 runs), the bound here is wider.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, refuse
from schedd.api.field_bounds import MISSING
from schedkit.bounds import DEFINITIONS, Bounds
from schedkit.bounds.rules import (
    CHOICE,
    COUNT64,
    INT32,
    ITEM,
    NAME,
    NOTE,
    SPAN,
    WORDS,
    Many,
    Number,
    Rule,
    Text,
    rule_of_type,
)
from schedproto.v1 import (
    auth_service_pb2,
    calendar_service_pb2,
    cluster_service_pb2,
    job_service_pb2,
    pool_service_pb2,
    run_service_pb2,
)

LONGEST_KEY: Final = 255
"""Characters of an idempotency key, which is indexed."""
_SIGNED: Final = Number(-INT32 - 1, INT32)
"""A number with a stricter rule in its call."""

_NAMES: Final = (
    "action backfill_id calendar etag fingerprint job member name namespace object parent_run_id"
    " pool redrive_id request_id run_id time_zone token_id worker"
)
_FIELDS: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_NAMES.split(), NAME),
    **dict.fromkeys(("note", "reason"), NOTE),
    **dict.fromkeys(("page_token", "resume_after"), Text(4_096)),
    **dict.fromkeys(("count", "max_parallel", "page_size", "version"), _SIGNED),
    **dict.fromkeys(("at_most", "fencing_token"), COUNT64),
    **dict.fromkeys(("delay", "lifetime"), SPAN),
    "expression": WORDS,
    "filter": Text(65_536),
    "idempotency_key": Text(LONGEST_KEY),
    "namespaces": Many(NAME, 1_000),
    "rate": Number(-1e9, 1e9),
    # Requests of a batch are checked separately: each has an answer of its own.
    "requests": Many(ITEM, 10_000),
    "run_ids": Many(NAME, 20_000),
    "states": Many(CHOICE, 100),
}
"""Fields of requests by name, unless their type limits them."""

SERVICES: Final[tuple[ServiceDescriptor, ...]] = tuple(
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (job_service_pb2, "JobService"),
        (run_service_pb2, "RunService"),
        (cluster_service_pb2, "ClusterService"),
        (calendar_service_pb2, "CalendarService"),
        (pool_service_pb2, "PoolService"),
        (auth_service_pb2, "AuthService"),
    )
)
"""The services of user calls."""


def _rules_of(request: Descriptor) -> dict[str, Rule]:
    own = [field for field in request.fields if rule_of_type(field) is None]
    return {field.name: _FIELDS[field.name] for field in own if field.name in _FIELDS}


REQUEST: Final = Bounds(
    {
        **DEFINITIONS,
        **{
            request.full_name: _rules_of(request)
            for request in (
                *(method.input_type for service in SERVICES for method in service.methods),
                run_service_pb2.ChosenGroup.DESCRIPTOR,
            )
        },
        "google.protobuf.FieldMask": {"paths": Many(NAME, 1_000)},
    }
)
"""Checks user calls."""


# Reject requests with a field out of its bounds (`request_bounds`).
#
# After this check every enum value is known, every time and duration can be computed with, and
# texts, lists and maps have a size that a call can handle.

MOST_VIOLATIONS: Final = 20
"""Violations that an error reports."""


def check_wellformed(request: Message) -> None:
    """Raise InvalidArgument with the first violations of the request's bounds."""
    found = (FieldViolation(_named(path), problem) for path, problem in REQUEST.violations(request))
    refuse([*islice(chain(_missing(request), found), MOST_VIOLATIONS)], "INVALID_FIELD")


def _missing(request: Message) -> Iterator[FieldViolation]:
    given = {field.full_name for field, _ in request.ListFields()}
    for field in request.DESCRIPTOR.fields:
        if field.full_name in MISSING and field.full_name not in given:
            yield FieldViolation(field.name, MISSING[field.full_name])


def _named(path: str) -> str:
    """Name a field of a job as `validation` does, wherever the job is in the request."""
    return path.removeprefix("job.").removeprefix("spec.")
