"""The runs, newest first, searched by words that stand in the address.

/runs?q=state:failed+worker:w3&page=…

What no index leads to is looked for among so many runs at a time, and the page says how far it has
looked: a page that answers at once and can go on, rather than one that reads millions of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.api import paging
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.page import Page, PageRequest, Shown
from schedd.web.pages.rows import RunLine, run_line
from schedd.web.pages.runs.run_search import request_of, with_word
from schedproto.v1 import run_service_pb2

ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class StateChoice:
    """A state to search by: how it looks, the words that do, and whether they do already."""

    look: StateStyle
    words: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RunsPage:
    """A page of runs. `next`: the token of the one after it, if there is one. `looked_to`: how far
    back they were looked for; None: to the end, or until the page was full.
    """

    runs: tuple[RunLine, ...]
    words: str
    choices: tuple[StateChoice, ...]
    next: str
    later: bool
    looked_to: datetime | None = None


async def _read(asked: PageRequest) -> Shown:
    words = asked.query.get("q", "").strip()
    request = request_of(words)
    request.namespace, request.page_size = asked.namespace, ROWS
    request.page_token = asked.query.get("page", "")
    listed = await asked.call("RunService.ListRuns", request, run_service_pb2.ListRunsResponse)
    seen = RunsPage(
        runs=tuple(run_line(run) for run in listed.runs),
        words=words,
        choices=tuple(choices(words)),
        next=listed.next_page_token,
        later=bool(request.page_token),
        looked_to=paging.reached(listed.next_page_token) if len(listed.runs) < ROWS else None,
    )
    return Shown("Runs", seen)


def choices(words: str) -> list[StateChoice]:
    """Each state, to be searched by or no longer. Pure."""
    found = []
    for state, look in LOOKS.items():
        chosen = f"state:{state.lower()}" in words.split()
        found.append(
            StateChoice(look, with_word(words, "state", "" if chosen else state.lower()), chosen)
        )
    return found


PAGE: Final = Page("/runs", "Runs", "runs", _read, asks=("q", "page"), frame="runs.html")
