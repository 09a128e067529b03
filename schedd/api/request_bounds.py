"""Bounds of every field of every user call, over gRPC and REST alike.

A call can handle any value within these bounds. Where a call has a stricter rule of its own (the
spelling of a name, at most 1,000 runs), the bound here is wider.
"""

from collections.abc import Mapping
from itertools import chain, islice
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, cut, refuse, wrong
from schedd.core.ids import Id
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
from schedkit.records import dataclass
from schedproto.v1 import (
    auth_service_pb2,
    calendar_service_pb2,
    cluster_service_pb2,
    job_service_pb2,
    pool_service_pb2,
    run_service_pb2,
)

# Bounds beyond the type of a field, which OpenAPI documents too (`web/rest/openapi`).


@dataclass(frozen=True, slots=True)
class Named:
    """The kind of object that an id names, and the command that lists such ids."""

    what: str
    listed: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` to `high`; `meaning` is for documentation."""

    low: int
    high: int
    meaning: str

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high


_RUN: Final = Named("run", "run list")
IDS: Final[Mapping[str, Named]] = {
    "run_id": _RUN,
    "run_ids": _RUN,
    "parent_run_id": _RUN,
    "backfill_id": Named("backfill", "job backfills"),
    "redrive_id": Named("redrive", "dlq redrives"),
    "token_id": Named("token", "auth token list"),
}
"""Fields that hold an id."""
MAY_BE_EMPTY: Final = frozenset(
    {
        "namespace",
        "filter",
        "page_token",
        "resume_after",
        "note",
        "reason",
        "request_id",
        "time_zone",
    }
)
"""Text parameters that may be empty: an empty one means the default. Any other empty parameter is
rejected as a mistake, because leaving it out would select all.
"""
CHOOSING: Final = frozenset({"job", "fingerprint", "member"})
"""Fields of a request's body that narrow its selection."""
CAREFUL: Final[Mapping[str, str]] = {"idempotency_key": "a key", "etag": "a value"}
"""Fields that guard a change against repetition or conflicts, with a word for their content."""

ROWS: Final = 50
MOST_ROWS: Final = 1_000
COMING: Final = 10
MOST_COMING: Final = 1_000
NUMBERS: Final[Mapping[str, Whole]] = {
    "page_size": Whole(
        0, (1 << 31) - 1, f"{ROWS} if it is 0 or isn't given; at most {MOST_ROWS:,} are returned."
    ),
    "count": Whole(0, MOST_COMING, f"{COMING} if it is 0 or isn't given."),
}
"""Fields that hold a number of requested objects."""

MISSING: Final[Mapping[str, str]] = {
    "schedd.v1.ExplainCronRequest.expression": "is missing: give a cron expression",
    "schedd.v1.ExplainInstantRequest.at": "is missing: give the scheduled time to explain",
}
"""Required fields, by full name, with the problem to report if they are missing."""


def if_empty(field: FieldDescriptor) -> str:
    """Return the problem of an empty text in this field of a body; empty: it is allowed."""
    if (holds := CAREFUL.get(field.name)) is not None:
        return f"is empty: give {holds}, or leave it out"
    of = field.containing_type
    chooses = of is not None and of.name.endswith("Request") and field.name in CHOOSING
    return "is empty: give a value, or leave it out" if chooses else ""


def id_of(field: str, text: str) -> Id:
    """Return the id in a field of IDS. Raises InvalidArgumentError."""
    try:
        return Id.parse(text)
    except ValueError:
        named = IDS[field]
        raise wrong(
            field,
            f"{cut(text)!r} isn't the id of a {named.what}",
            f"give an id as `schedctl {named.listed}` shows it; nothing was stored",
        ) from None


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
    """Raise InvalidArgument with the first violations of the request's bounds. Fields of a job are
    named as `validation` names them, wherever the job is in the request.
    """
    given = {field.full_name for field, _ in request.ListFields()}
    missing = [
        FieldViolation(field.name, MISSING[field.full_name])
        for field in request.DESCRIPTOR.fields
        if field.full_name in MISSING and field.full_name not in given
    ]
    found = (
        FieldViolation(path.removeprefix("job.").removeprefix("spec."), problem)
        for path, problem in REQUEST.violations(request)
    )
    refuse([*islice(chain(missing, found), MOST_VIOLATIONS)], "INVALID_FIELD")
