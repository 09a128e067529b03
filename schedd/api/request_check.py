"""Requests with a field out of its bounds are refused before a call looks at them.

The bounds are those of `request_bounds`. Behind this check every enum has a name, every time and
duration can be computed with, and texts, lists and maps have a size that a call can handle.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from google.protobuf.message import Message

from schedd.api.errors import Violation, refuse
from schedd.api.field_bounds import MISSING
from schedd.api.request_bounds import REQUEST

MOST_TOLD: Final = 20
"""Violations that are told: nobody can use a thousand lines."""


def check_wellformed(request: Message) -> None:
    """Raise InvalidArgument with the first violations of the request's bounds."""
    found = (Violation(_named(path), problem) for path, problem in REQUEST.violations(request))
    refuse([*islice(chain(_missing(request), found), MOST_TOLD)], "INVALID_FIELD")


def _missing(request: Message) -> Iterator[Violation]:
    given = {field.full_name for field, _ in request.ListFields()}
    for field in request.DESCRIPTOR.fields:
        if field.full_name in MISSING and field.full_name not in given:
            yield Violation(field.name, MISSING[field.full_name])


def _named(path: str) -> str:
    """Name a field of a job as `validation` does, wherever the job stands in the request."""
    return path.removeprefix("job.").removeprefix("spec.")
