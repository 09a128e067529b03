"""The overview page, and the one look at the cluster that all its watchers share.

    GET /        the page, rendered here: reads well without any script
    GET /events  its body again, each time it has changed: at most twice a second

Whoever watches does the looking, under one lock: the first past EVERY reads for all, the others
find what it read. So a thousand watchers cost one set of queries, and none costs nothing.

Invariants
- What is sent is the body of the page as `/` would show it now; its digest is the event's id, so a
  watcher that comes back is told only of what it hasn't seen.
- While the database is away the last reading stays on the page, which says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from schedd.api.errors import OutOfTouch
from schedd.api.services import Services
from schedd.web.glance import Glance, glance
from schedd.web.pages import render
from schedd.web.reading import Stored, read
from schedd.web.streams import Event, EventStream
from schedkit.clock import boottime, utcnow
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

EVERY: Final = 0.5
"""Seconds between two looks at the cluster, however many watch."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of the page at one look."""

    html: str
    digest: str
    glance: Glance


class Overview:
    """Looks at the cluster for all who watch."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._stored = Stored()
        self._away = False
        self._body: Body | None = None

    async def now(self) -> Body:
        """The body as it stands, EVERY old at most."""
        async with self._looking:
            if self._body is None or self._due() <= 0:
                return await self._look()
            return self._body

    async def after(self, seen: str) -> Body:
        """The first body whose digest is another than `seen`."""
        while True:
            async with self._looking:
                if self._body is None or self._body.digest == seen:
                    await asyncio.sleep(self._due())
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
        return max(0.0, self._looked_at + EVERY - boottime())

    async def _look(self) -> Body:
        await self._read()
        cluster = self._services.cluster
        seen = glance(
            self._stored,
            cluster.view(),
            cluster.tenure,
            trusted=cluster.trusted(),
            twin=cluster.twin,
            away=self._away,
        )
        html = render("overview_body.html", glance=seen, now=utcnow())
        self._body = Body(html, hashlib.sha256(html.encode()).hexdigest()[:16], seen)
        self._looked_at = boottime()
        return self._body

    async def _read(self) -> None:
        try:
            self._stored = await read(self._services)
        except (Unavailable, OutOfTouch) as error:
            if not self._away:
                log.warning("the overview can't be read: %s", error)
            self._away = True
        else:
            self._away = False


def routes(services: Services, closing: asyncio.Event) -> list[BaseRoute]:
    """The page and its events."""
    overview = Overview(services)

    async def page(_: Request) -> Response:
        body = await overview.now()
        html = render("overview.html", body=body.html, glance=body.glance)
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    async def events(request: Request) -> EventStream:
        seen = request.headers.get("last-event-id", "")
        return EventStream(overview.events(seen), closing)

    return [Route("/", page), Route("/events", events)]
