"""Snapshots of pages, shared by all watchers of an address.

The first watcher after `every` seconds reads for all (`schedkit.single_flight`). So a thousand
watchers of an address cost one set of queries, and an address without watchers costs none.

Invariants
- Watchers receive the body that the address would show now. The event's id is its digest, so a
  watcher that reconnects receives only newer bodies.
- While the database is unavailable, the page keeps the last body, below a warning with its age.
- Snapshots are never shared between callers.
- A body is rendered again only if its values or the date have changed. Templates use `now` only to
  decide whether a time is of today.
- A snapshot without watchers is kept for KEPT_FOR, and at most KEPT of them: made-up addresses cost
  a read each, but no memory.
- A page that won't change (`Shown.over`) is sent once more, then the stream ends.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

from schedd.api.errors import CallError, MemberUnavailableError
from schedd.web.formatting import data_age
from schedd.web.pages.page import EVERY, Page, PageRequest, Shown
from schedd.web.rest import problems
from schedd.web.streams import ServerSentEvent
from schedd.web.templating import render
from schedkit.clock import boottime, utcnow
from schedkit.errors import Unavailable
from schedkit.records import dataclass, replace
from schedkit.single_flight import NEXT, RUNNING, SingleFlight

log = logging.getLogger(__name__)

KEPT: Final = 64
"""Addresses whose snapshot is kept without watchers."""
KEPT_FOR: Final = 300.0
"""Seconds from the last request until it is dropped."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a page at one time; `seen`: the value of its templates."""

    html: str
    digest: str
    title: str
    seen: object = None
    status: int = 200
    over: bool = False


class PageSnapshot:
    """The snapshot of one address for all its watchers."""

    def __init__(self, page: Page, asked: PageRequest) -> None:
        self._page = page
        self._asked = asked
        self._every = EVERY if page.every is None else page.every
        self._reads: SingleFlight[None, Body] = SingleFlight("page")
        self._watchers = 0
        self._asked_at = boottime()
        self._looked_at = -math.inf
        self._again = self._every
        """Seconds from the last read to the next: less than `every` after a failure."""
        self._found: Body | None = None
        """The body of the last read."""
        self._body: Body | None = None
        """The same, below a warning about this member, if any."""
        self._unfired: tuple[Body, Body] | None = None
        """The body, without and with the warning that this member fires nothing; rendered once."""
        self._known: Body | None = None
        self._drawn: tuple[object, ...] = ()
        self._kept: object = None
        self._read_at = datetime.min.replace(tzinfo=UTC)
        self._away = False

    @property
    def watched(self) -> bool:
        return self._watchers > 0

    @property
    def idle(self) -> float:
        """Return seconds since the last request; 0 with watchers."""
        return 0.0 if self.watched else boottime() - self._asked_at

    def record_request(self) -> None:
        self._asked_at = boottime()

    async def now(self) -> Body:
        """Return the body, `every` seconds old at most."""
        if self._found is None or self._due() <= 0:
            return await self._reads.get(None, self._read_body, since=RUNNING)
        return self._with_warning(self._found)

    async def refresh(self) -> Body:
        """Read and return the body: for callers that have just changed something."""
        return await self._reads.get(None, self._read_body, since=NEXT)

    async def after(self, seen: str) -> Body:
        """Wait for a body whose digest isn't `seen`, or the final body."""
        while True:
            if self._body is None or (self._body.digest == seen and not self._body.over):
                await asyncio.sleep(min(self._due(), EVERY))
            body = await self.now()
            if body.over or body.digest != seen:
                return body

    async def events(self, seen: str) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield each body after the one with digest `seen`, until the final one."""
        self._watchers += 1
        try:
            while True:
                body = await self.after(seen)
                seen = body.digest
                yield ServerSentEvent(body.html, id=seen)
                if body.over:
                    yield ServerSentEvent("", name="end")
                    return
        finally:
            self._watchers -= 1
            self.record_request()

    def _due(self) -> float:
        return max(0.0, self._looked_at + self._again - boottime())

    async def _read_body(self) -> Body:
        self._found = await self._read()
        self._looked_at = boottime()
        return self._with_warning(self._found)

    def _with_warning(self, found: Body) -> Body:
        """Return the body, below a warning if this member fires nothing now."""
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
            read = await self._page.read(self._asked)
        except (Unavailable, MemberUnavailableError) as error:
            took = boottime() - began  # a slow failure isn't retried more often than that
            self._again = min(self._every, max(EVERY, took))
            return self._without(error)
        except CallError as error:
            return refused(error)
        self._again, self._away, self._kept = self._every, False, read.kept
        self._read_at = utcnow()
        return self._draw(read)

    def _draw(self, read: Shown) -> Body:
        """Return the rendered body; the previous one, if the values are the same."""
        drawn = (read.title, read.seen, read.over, utcnow().date())
        if self._known is None or drawn != self._drawn:
            self._known = shown(self._page, self._asked, read)
        self._drawn = drawn
        return self._known

    def _without(self, error: Unavailable | MemberUnavailableError) -> Body:
        if not self._away:
            log.warning("page not read: page=%s error=%s", self._page.path, error)
        self._away = True
        if self._page.without is not None:
            return shown(self._page, self._asked, self._page.without(self._asked, self._kept))
        if self._known is None:
            return refused(error)
        age = data_age(self._read_at, utcnow())
        return _beneath("away.html", self._known, self._asked, age=age)


class PageSnapshots:
    def __init__(self) -> None:
        self._looks: dict[tuple[str, ...], PageSnapshot] = {}

    def snapshot_for(self, page: Page, asked: PageRequest) -> PageSnapshot:
        """Return the snapshot of an address for a caller; the key contains the caller's roles."""
        who = asked.caller.who
        key = (
            page.path,
            f"{who.actor} {who.token} {sorted(who.roles.items())}",
            *(f"{name}={value}" for name, value in sorted(asked.variables.items())),
            *(f"?{name}={value}" for name, value in sorted(asked.query.items())),
        )
        look = self._looks.pop(key, None) or PageSnapshot(page, asked)
        look.record_request()
        self._looks[key] = look
        self._forget()
        return look

    def _forget(self) -> None:
        unwatched = [key for key, look in self._looks.items() if not look.watched]
        for number, key in enumerate(unwatched, 1):
            if self._looks[key].idle > KEPT_FOR or number <= len(unwatched) - KEPT:
                del self._looks[key]


def shown(page: Page, asked: PageRequest, read: Shown) -> Body:
    html = render(
        f"{page.template}_body.html", seen=read.seen, now=utcnow(), link=asked.link, may=asked.may
    )
    return replace(_body(html, read.title, seen=read.seen), over=read.over)


def refused(error: CallError | Unavailable) -> Body:
    problem = problems.problem_of(error)
    html = render("problem_body.html", seen=problem)
    return _body(html, problem["title"], status=problem["status"])


def _beneath(template: str, body: Body, asked: PageRequest, **values: str) -> Body:
    html = render(template, link=asked.link, **values) + body.html
    return replace(body, html=html, digest=_digest(html))


def _body(html: str, title: str, seen: object = None, status: int = 200) -> Body:
    return Body(html, _digest(html), title, seen, status)


def _digest(html: str) -> str:
    return hashlib.sha256(html.encode()).hexdigest()[:16]
