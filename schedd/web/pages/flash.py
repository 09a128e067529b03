"""Pass the result of an action to the next page, in a cookie with a short lifetime.

    POST /jobs/etl/trigger ─▶ 303, cookie ─▶ GET /runs/…: "etl was triggered", cookie deleted

A browser shows only the last answer to a page. If two forms of one rendering were sent in quick
succession, that answer shows both results (`RecentFlashes`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.responses import Response

from schedd.web.templating import ONCE

COOKIE: Final = "schedd-flash"
LIVES: Final = 30
"""Seconds."""
MOST_DRAWINGS: Final = 256
"""Renderings whose results are remembered; an older one shows only its last result."""
MOST_THINGS: Final = 5
"""Results in one answer: the last ones."""
LONGEST_STAMP: Final = 64
"""Characters of a request id; ours have half as many."""


class Flash(NamedTuple):
    """The result of an action, and the request id of the rendering; empty if it had none."""

    words: str
    of: str


class RecentFlashes:
    """The results of the newest renderings of pages, by user."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def record(self, actor: str, fields: Mapping[str, str], words: str) -> Flash:
        """Record the result of a form. Return the results of its rendering so far."""
        stamp = fields.get(ONCE, "")
        if not stamp or len(stamp) > LONGEST_STAMP:
            return Flash(words, "")
        done = self._done.setdefault((actor, stamp), [])
        if words not in done:  # the same sent twice
            done.append(words)
        del done[:-MOST_THINGS]
        self._done.move_to_end((actor, stamp))
        if len(self._done) > MOST_DRAWINGS:
            self._done.popitem(last=False)
        return Flash(" ".join(done), stamp)


def send(response: Response, flash: Flash, *, secure: bool) -> None:
    """Set the cookie for the next page."""
    response.set_cookie(
        COOKIE,
        written(flash),
        max_age=LIVES,
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def written(flash: Flash) -> str:
    """Return the value of the cookie. Pure."""
    return quote(json.dumps(flash))


def read(cookie: str) -> Flash | None:
    """Return the message in a cookie; None if it is invalid. Pure."""
    try:
        match json.loads(unquote(cookie)):
            case [str(words), str(of)] if words:
                return Flash(words, of)
    except (ValueError, RecursionError):
        pass
    return None
