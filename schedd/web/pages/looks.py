"""One look at what an address shows, that all its watchers share.

Whoever watches does the looking, under one lock: the first past `every` reads for all, the others
find what it read. So a thousand watchers of an address cost one set of queries, and none costs
nothing.

Invariants
- What is sent is the body of the page as its address would show it now; its digest is the event's
  id, so a watcher that comes back is told only of what it hasn't seen.
- While the database is away the last reading stays on the page, which says so.
- What one caller may see is never shared with another.
- However many addresses are watched, AT_A_TIME of them are looked at together: pages never take
  more of the database than that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final

from schedd.api.errors import CallError, OutOfTouch
from schedd.web import problems
from schedd.web.pages.page import EVERY, Asked, Page, Shown
from schedd.web.streams import Event
from schedd.web.templating import render
from schedkit.clock import boottime, utcnow
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

KEPT: Final = 256
"""Addresses whose last look is kept though nobody watches."""


AT_A_TIME: Final = 4
"""Addresses that are looked at together."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a page at one look; `seen` is what its templates know by that name."""

    html: str
    digest: str
    title: str
    seen: object = None
    status: int = 200


class Look:
    """Looks at one address for all who watch it."""

    def __init__(self, page: Page, asked: Asked, turns: asyncio.Semaphore) -> None:
        self._page = page
        self._asked = asked
        self._turns = turns
        self._every = EVERY if page.every is None else page.every
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._body: Body | None = None
        self._known: Body | None = None
        self._kept: object = None
        self._away = False

    async def now(self) -> Body:
        """The body as it stands, `every` old at most."""
        async with self._looking:
            if self._body is None or self._due() <= 0:
                return await self._look()
            return self._body

    async def anew(self) -> Body:
        """The body as it stands now: for who has just changed something."""
        async with self._looking:
            return await self._look()

    async def after(self, seen: str) -> Body:
        """The first body whose digest is another than `seen`."""
        while True:
            if self._body is None or self._body.digest == seen:
                await asyncio.sleep(self._due())  # not under the lock: others want to look sooner
            async with self._looking:
                if self._body is None or self._due() <= 0:
                    await self._look()
                if self._body is not None and self._body.digest != seen:
                    return self._body

    async def events(self, seen: str) -> AsyncGenerator[Event, None]:
        """Each change of the body after the one that was seen, for ever."""
        while True:
            body = await self.after(seen)
            seen = body.digest
            yield Event(body.html, id=seen)

    def _due(self) -> float:
        """Seconds until the next look may be taken."""
        return max(0.0, self._looked_at + self._every - boottime())

    async def _look(self) -> Body:
        async with self._turns:
            self._body = await self._read()
        self._looked_at = boottime()
        return self._body

    async def _read(self) -> Body:
        try:
            told = await self._page.read(self._asked)
        except (Unavailable, OutOfTouch) as error:
            return self._without(error)
        except CallError as error:
            return refused(error)
        self._away, self._kept = False, told.kept
        self._known = shown(self._page, self._asked, told)
        return self._known

    def _without(self, error: Unavailable | OutOfTouch) -> Body:
        """What is shown while nothing can be read."""
        if not self._away:
            log.warning("%s can't be read: %s", self._page.path, error)
        self._away = True
        if self._page.without is not None:
            return shown(self._page, self._asked, self._page.without(self._asked, self._kept))
        if self._known is None:
            return refused(error)
        known = self._known
        html = render("away.html") + known.html
        return replace(known, html=html, digest=_digest(html))


class Looks:
    """The looks that somebody takes, and the latest of those that nobody does any more."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, ...], Look] = {}
        self._turns = asyncio.Semaphore(AT_A_TIME)

    def of(self, page: Page, asked: Asked) -> Look:
        """The one look of this address, for this caller: what they may is part of who they are."""
        who = asked.caller.who
        key = (
            page.path,
            f"{who.actor} {who.token} {sorted(who.roles.items())}",
            *(f"{name}={value}" for name, value in sorted(asked.variables.items())),
            *(f"?{name}={value}" for name, value in sorted(asked.query.items())),
        )
        look = self._looks.pop(key, None) or Look(page, asked, self._turns)
        self._looks[key] = look
        while len(self._looks) > KEPT:
            del self._looks[next(iter(self._looks))]
        return look


def shown(page: Page, asked: Asked, told: Shown) -> Body:
    """The body that shows what was read."""
    html = render(f"{page.template}_body.html", seen=told.seen, now=utcnow(), link=asked.link)
    return _body(html, told.title, seen=told.seen)


def refused(error: CallError | Unavailable) -> Body:
    """What is shown instead of a page that can't be."""
    told = problems.of(error)
    html = render("problem_body.html", seen=told)
    return _body(html, told["title"], status=told["status"])


def _body(html: str, title: str, seen: object = None, status: int = 200) -> Body:
    return Body(html, _digest(html), title, seen, status)


def _digest(html: str) -> str:
    return hashlib.sha256(html.encode()).hexdigest()[:16]
