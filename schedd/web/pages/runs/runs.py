"""The page of runs, newest first, with a search by the words in the address.

/runs?q=state:failed+worker:w3&page=…

A search without an index reads a limited number of runs for each page. The page shows how far it
has searched, and has a button to continue.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api import paging
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.page import Page, PageRequest, Shown, instant_of, wrong
from schedproto.v1 import common_pb2, run_pb2, run_service_pb2

# Words in the address that runs are searched by.

Request: TypeAlias = run_service_pb2.ListRunsRequest

_BY_WORD: Final = {look.word: state for state, look in LOOKS.items()}
FIX: Final = "correct the word, or leave it out"
TRIGGERS: Final = ("schedule", "manual", "submit", "backfill", "chain", "redrive")


def _states(request: Request, field: str, value: str) -> None:
    for word in value.split(","):
        name = _BY_WORD.get(word.lower(), word.upper())
        if name not in LOOKS:
            raise wrong(
                field, f"{word!r} isn't a valid state; use one of {', '.join(LOOKS).lower()}", FIX
            )
        request.states.append(common_pb2.RunState.Value(f"RUN_STATE_{name}"))


def _trigger(request: Request, field: str, value: str) -> None:
    if value.lower() not in TRIGGERS:
        raise wrong(
            field, f"{value!r} isn't a valid trigger; use one of {', '.join(TRIGGERS)}", FIX
        )
    request.trigger = run_pb2.Run.Trigger.Value(f"TRIGGER_{value.upper()}")


FIELDS: Final = {
    "state": "states",
    "job": "job",
    "worker": "worker",
    "trigger": "trigger",
    "after": "scheduled_after",
    "before": "scheduled_before",
    "backfill": "backfill_id",
    "parent": "parent_run_id",
}
"""Search field → field of the request."""


def _put(request: Request, field: str, value: str) -> None:
    name = FIELDS[field]
    if field == "state":
        _states(request, field, value)
    elif field == "trigger":
        _trigger(request, field, value)
    elif isinstance(at := getattr(request, name), Timestamp):
        at.FromDatetime(instant_of(value, field))
    else:
        setattr(request, name, value)


def request_of(words: str) -> Request:
    """Return the request of a search. Raises InvalidArgumentError."""
    request, given = Request(), set[str]()
    for word in words.split():
        field, colon, value = word.partition(":")
        if not colon:
            field, value = "job", word
        if field not in FIELDS:
            problem = f"the search field is unknown; use one of {', '.join(FIELDS)}"
            raise wrong(field[:60], problem, FIX)
        if not value:
            raise wrong(field, "the value is empty", FIX)
        if field in given and field != "state":
            raise wrong(
                field, "the field is given twice, but takes one value", "remove one of the two"
            )
        given.add(field)
        _put(request, field, value)
    return request


def with_word(words: str, field: str, value: str) -> str:
    """Return the words with another value of a field; without the field if the value is empty."""
    others = [word for word in words.split() if not word.startswith(f"{field}:")]
    return " ".join([*others, f"{field}:{value}"] if value else others)


ROWS: Final = 50


async def _read(asked: PageRequest) -> Shown:
    words = asked.query.get("q", "").strip()
    request = request_of(words)
    request.namespace, request.page_size = asked.namespace, ROWS
    request.page_token = asked.query.get("page", "")
    listed = await asked.call(request, run_service_pb2.ListRunsResponse)
    seen = {
        "runs": tuple(listed.runs),
        "words": words,
        "choices": tuple(choices(words)),
        "next": listed.next_page_token,
        "later": bool(request.page_token),
        "looked_to": paging.reached(listed.next_page_token) if len(listed.runs) < ROWS else None,
    }
    return Shown("Runs", seen)


def choices(words: str) -> Iterator[tuple[StateStyle, str, bool]]:
    """Yield each state: its style, the search that toggles it, whether it is selected. Pure."""
    for state, look in LOOKS.items():
        chosen = f"state:{state.lower()}" in words.split()
        yield look, with_word(words, "state", "" if chosen else state.lower()), chosen


PAGE: Final = Page("/runs", "Runs", "runs", _read, asks=("q", "page"), frame="runs.html")
