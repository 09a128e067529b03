"""What an action did, brought to the page that tells it, in a cookie that lives for a moment.

    POST /jobs/etl/trigger ─▶ 303, cookie ─▶ GET /runs/…: "etl was triggered", and the cookie goes

A browser shows one answer of a drawing of a page, the last: where two of its forms were sent, one
soon after the other, that one tells what both did (`RecentFlashes`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.responses import Response

from schedd.web.templating import ONCE

COOKIE: Final = "schedd-told"
LIVES: Final = 30
"""Seconds."""
MOST_DRAWINGS: Final = 256
"""Drawings of which it is known what they did; an older one tells the last thing alone."""
MOST_THINGS: Final = 5
"""Things that an answer tells; the last ones."""
LONGEST_STAMP: Final = 64
"""Characters; those of ours are half of it."""


class Flash(NamedTuple):
    """What was done, and the stamp of the drawing that asked for it; empty if it had none."""

    words: str
    of: str


class RecentFlashes:
    """What the newest drawings of pages did, each for who has it before them."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def told(self, actor: str, fields: Mapping[str, str], words: str) -> Flash:
        """What is told of this, which a form with these fields did."""
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


def send(response: Response, told: Flash, *, secure: bool) -> None:
    """Have the browser bring it to the next page."""
    response.set_cookie(
        COOKIE,
        written(told),
        max_age=LIVES,
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def written(told: Flash) -> str:
    """What the cookie holds. Pure."""
    return quote(json.dumps(told))


def read(cookie: str) -> Flash | None:
    """What was sent; None where it isn't ours. Pure."""
    try:
        match json.loads(unquote(cookie)):
            case [str(words), str(of)] if words:
                return Flash(words, of)
    except (ValueError, RecursionError):
        pass
    return None
