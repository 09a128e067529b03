"""Reject requests with a field out of its bounds (`request_bounds`).

After this check every enum value is known, every time and duration can be computed with, and texts,
lists and maps have a size that a call can handle.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, refuse
from schedd.api.field_bounds import MISSING
from schedd.api.request_bounds import REQUEST

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
