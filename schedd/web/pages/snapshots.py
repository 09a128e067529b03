"""One look at what an address shows, that all its watchers share.

Whoever watches does the looking, under one lock: the first past `every` reads for all, the others
find what it read. So a thousand watchers of an address cost one set of queries, and none costs
nothing.

Invariants
- What is sent is the body of the page as its address would show it now; its digest is the event's
  id, so a watcher that comes back is told only of what it hasn't seen.
- While the database is away the last reading stays on the page, which says so.
- What one caller may see is never shared with another.
- What was read is drawn again only where it differs from what was read before, or the day does:
  of `now`, templates say no more than whether it is an instant's day.
- What nobody watches is kept for KEPT_FOR, and no more than KEPT of it: made-up addresses cost a
  look each, and nothing that stays.
- What is over (`Shown.over`) is sent once more, and then that it has ended: nobody looks again.
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
from schedd.web.pages.page import EVERY, Page, PageRequest, Shown
from schedd.web.rest import problems
from schedd.web.streams import Event
from schedd.web.templating import render
from schedkit.clock import boottime, utcnow
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

KEPT: Final = 64
"""Addresses whose last look is kept though nobody watches."""
KEPT_FOR: Final = 300.0
"""Seconds for which it is, from when somebody asked last."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a page at one look; `seen` is what its templates know by that name."""

    html: str
    digest: str
    title: str
    seen: object = None
    status: int = 200
    over: bool = False


class PageSnapshot:
    """Looks at one address for all who watch it."""

    def __init__(self, page: Page, asked: PageRequest) -> None:
        self._page = page
        self._asked = asked
        self._every = EVERY if page.every is None else page.every
        self._looking = asyncio.Lock()
        self._watchers = 0
        self._asked_at = boottime()
        self._looked_at = -math.inf
        self._again = self._every
        """Seconds from the last look to the next: less than `every` after one in vain."""
        self._found: Body | None = None
        """What the last look gave."""
        self._body: Body | None = None
        """The same, below what is to be known of this member now."""
        self._unfired: tuple[Body, Body] | None = None
        """What was found, and below that it fires nothing: drawn once for all who watch."""
        self._known: Body | None = None
        self._drawn: tuple[object, ...] = ()
        self._kept: object = None
        self._away = False

    @property
    def watched(self) -> bool:
        """Whether somebody is told of each change."""
        return self._watchers > 0

    @property
    def idle(self) -> float:
        """Seconds since somebody asked last; 0 while it is watched."""
        return 0.0 if self.watched else boottime() - self._asked_at

    def asked(self) -> None:
        """Somebody asks."""
        self._asked_at = boottime()

    async def now(self) -> Body:
        """The body as it stands, `every` old at most."""
        async with self._looking:
            if self._found is None or self._due() <= 0:
                return await self._look()
            return self._stands(self._found)

    async def anew(self) -> Body:
        """The body as it stands now: for who has just changed something."""
        async with self._looking:
            return await self._look()

    async def after(self, seen: str) -> Body:
        """The first body whose digest is another than `seen`, or the last there is."""
        while True:
            if self._body is None or (self._body.digest == seen and not self._body.over):
                # Not under the lock: others want to look sooner.
                await asyncio.sleep(min(self._due(), EVERY))
            body = await self.now()
            if body.over or body.digest != seen:
                return body

    async def events(self, seen: str) -> AsyncGenerator[Event, None]:
        """Each change of the body after the one that was seen, until it is over."""
        self._watchers += 1
        try:
            while True:
                body = await self.after(seen)
                seen = body.digest
                yield Event(body.html, id=seen)
                if body.over:
                    yield Event("", name="end")
                    return
        finally:
            self._watchers -= 1
            self.asked()

    def _due(self) -> float:
        """Seconds until the next look may be taken."""
        return max(0.0, self._looked_at + self._again - boottime())

    async def _look(self) -> Body:
        self._found = await self._read()
        self._looked_at = boottime()
        return self._stands(self._found)

    def _stands(self, found: Body) -> Body:
        """What was found, below what is to be known of this member now, however old the look is."""
        fires = self._page.tells_troubles or self._asked.services.cluster.trusted()
        if fires or self._away:
            self._body = found
            return found
        if self._unfired is None or self._unfired[0] is not found:
            self._unfired = (found, _beneath("untrusted.html", found, self._asked))
        self._body = self._unfired[1]
        return self._body

    async def _read(self) -> Body:
        began = boottime()
        try:
            told = await self._page.read(self._asked)
        except (Unavailable, OutOfTouch) as error:
            took = boottime() - began  # who had no answer for long asks no more often than that
            self._again = min(self._every, max(EVERY, took))
            return self._without(error)
        except CallError as error:
            return refused(error)
        self._again, self._away, self._kept = self._every, False, told.kept
        return self._draw(told)

    def _draw(self, told: Shown) -> Body:
        """The body that shows it: the one before, if that shows the same."""
        drawn = (told.title, told.seen, told.over, utcnow().date())
        if self._known is None or drawn != self._drawn:
            self._known = shown(self._page, self._asked, told)
        self._drawn = drawn
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
        return _beneath("away.html", self._known, self._asked)


class PageSnapshots:
    """The looks that somebody takes, and the latest of those that nobody does any more."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, ...], PageSnapshot] = {}

    def of(self, page: Page, asked: PageRequest) -> PageSnapshot:
        """The one look of this address, for this caller: what they may is part of who they are."""
        who = asked.caller.who
        key = (
            page.path,
            f"{who.actor} {who.token} {sorted(who.roles.items())}",
            *(f"{name}={value}" for name, value in sorted(asked.variables.items())),
            *(f"?{name}={value}" for name, value in sorted(asked.query.items())),
        )
        look = self._looks.pop(key, None) or PageSnapshot(page, asked)
        look.asked()
        self._looks[key] = look
        self._forget()
        return look

    def _forget(self) -> None:
        """What nobody watches and was asked for long ago, and the first of what is too much."""
        unwatched = [key for key, look in self._looks.items() if not look.watched]
        for number, key in enumerate(unwatched, 1):
            if self._looks[key].idle > KEPT_FOR or number <= len(unwatched) - KEPT:
                del self._looks[key]


def shown(page: Page, asked: PageRequest, told: Shown) -> Body:
    """The body that shows what was read."""
    html = render(
        f"{page.template}_body.html",
        seen=told.seen,
        now=utcnow(),
        link=asked.link,
        may=asked.may,
    )
    return replace(_body(html, told.title, seen=told.seen), over=told.over)


def refused(error: CallError | Unavailable) -> Body:
    """What is shown instead of a page that can't be."""
    told = problems.of(error)
    html = render("problem_body.html", seen=told)
    return _body(html, told["title"], status=told["status"])


def _beneath(template: str, body: Body, asked: PageRequest) -> Body:
    """The same, below what must be known of it."""
    html = render(template, link=asked.link) + body.html
    return replace(body, html=html, digest=_digest(html))


def _body(html: str, title: str, seen: object = None, status: int = 200) -> Body:
    return Body(html, _digest(html), title, seen, status)


def _digest(html: str) -> str:
    return hashlib.sha256(html.encode()).hexdigest()[:16]
