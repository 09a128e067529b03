"""Serve the pages: each at its address, live below `/live`, and the actions of their forms.

    GET  /jobs/etl         the page: rendered here, works without a script
    GET  /live/jobs/etl    its body, after each change      snapshots.py
    POST /jobs/etl/pause   an action; 303 to the page that shows its result

Invariants
- The result of an action, or its error, is shown on a page.
- A reload, or a form that is sent twice, repeats no action: each rendering has a request id
  (`stamped`), which its forms send.
- A form redirects only to an address of this site.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from schedd.api.auth.authentication import PROMPT
from schedd.api.errors import CallError, UnauthenticatedError
from schedd.api.services import Services
from schedd.web.http_auth import IDENTITY, REASON, caller_of, check_page
from schedd.web.links import local, referred
from schedd.web.pages.page import (
    AT_A_TIME,
    NOTHING,
    RETURN,
    Action,
    Page,
    PageRequest,
    Recent,
    fields_of,
)
from schedd.web.pages.snapshots import Body, PageSnapshots, refused, shown
from schedd.web.rest import problems
from schedd.web.rest.problems import RequestProblem, in_words, rename
from schedd.web.streams import BEAT, BEAT_EVERY, EventStream, ServerSentEvent
from schedd.web.templating import ONCE, compiled, render, stamped
from schedkit.errors import Unavailable

# Pass the result of an action to the next page, in a cookie with a short lifetime.
#
#     POST /jobs/etl/trigger ─▶ 303, cookie ─▶ GET /runs/…: "etl was triggered", cookie deleted
#
# A browser shows only the last answer to a page. If two forms of one rendering were sent in quick
# succession, that answer shows both results (`RecentFlashes`).

FLASH_COOKIE: Final = "schedd-flash"
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


def send_flash(response: Response, flash: Flash, *, secure: bool) -> None:
    response.set_cookie(
        FLASH_COOKIE, written(flash), max_age=LIVES, httponly=True, samesite="strict", secure=secure
    )


def written(flash: Flash) -> str:
    return quote(json.dumps(flash))


def read_flash(cookie: str) -> Flash | None:
    """Return the message in a cookie; None if it is invalid. Pure."""
    try:
        match json.loads(unquote(cookie)):
            case [str(words), str(of)] if words:
                return Flash(words, of)
    except (ValueError, RecursionError):
        pass
    return None


log = logging.getLogger(__name__)

BACK: Final = Flash("You are logged in. Nothing was changed yet: send the form again.", "")
LONGEST_REASON: Final = 200
"""Characters, as in the dialogs: it goes into a cookie."""
TABS: Final = (
    ("Overview", "", "o"),
    ("Jobs", "jobs", "j"),
    ("Runs", "runs", "r"),
    ("Workers", "workers", "w"),
    ("Cluster", "cluster", "c"),
    ("Dead letters", "dead-letters", "d"),
    ("Cron", "cron", "e"),
    ("Forecast", "forecast", "f"),
)
"""The navigation: name, path, and the key after `g`."""


class Site:
    def __init__(self, services: Services, closing: asyncio.Event, pages: Sequence[Page]) -> None:
        self._services = services
        self._closing = closing
        self._pages = pages
        self._looks = PageSnapshots()
        self._turns = asyncio.Semaphore(AT_A_TIME)
        self._recent = Recent()
        self._lately = RecentFlashes()
        self._tabs = [tab for tab in TABS if any(page.tab == tab[0] for page in pages)]

    def routes(self) -> list[BaseRoute]:
        return [route for page in self._pages for route in self._routes(page)]

    def nowhere(self, request: Request) -> Response:
        problem = problems.problem(
            "NOT_FOUND",
            f"no page at {request.url.path}",
            reason="NO_SUCH_PATH",
            remedy="choose a page from the navigation",
        )
        if IDENTITY not in request.scope:  # below /static, without authentication
            return problems.problem_response(problem)
        return self._problem(problem, "/", self._asked(request))

    async def back_with(self, request: Request, address: str, typed: Mapping[str, str]) -> Response:
        """Return the page of a form that was sent before a login, filled in. For an action without
        such a page, redirect to a page that shows that nothing was changed, and the typed reason.
        """
        if typed and (filled := await self._filled(request, address, typed)):
            return filled
        message = BACK
        if reason := typed.get(REASON, "")[:LONGEST_REASON]:
            message = Flash(f"{BACK.words} Your reason was: {reason}", "")
        response = RedirectResponse(address, 303)
        send_flash(response, message, secure=request.url.scheme == "https")
        return response

    async def _filled(
        self, request: Request, address: str, typed: Mapping[str, str]
    ) -> Response | None:
        found = urlsplit(address)
        actions = [action for page in self._pages for action in page.actions]
        page = next((one.again for one in actions if one.again and one.path == found.path), None)
        if page is None:
            return None
        given = parse_qsl(found.query)
        query = dict(given)
        asked = replace(self._asked(request), query=query)
        values = {name: typed.get(name, "") for name in page.asks}
        filled = replace(asked, query={**query, **values})
        try:
            check_page(asked.caller.who)
            page.check([name for name, _ in given])
            body = shown(page, filled, await page.read(filled))
        except (CallError, Unavailable):  # which the page itself shows
            return None
        return self._framed(page.frame, body, page.tab, asked, flash=BACK)

    def _routes(self, page: Page) -> list[BaseRoute]:
        made: list[BaseRoute] = [Route(page.path, partial(self._page, page))]
        if page.every is not None:
            made.append(Route(f"/live{page.path}", partial(self._live, page)))
        posts = ((action.path, partial(self._act, action)) for action in page.actions)
        return made + [Route(path, act, methods=["POST"]) for path, act in posts]

    async def _live(self, page: Page, request: Request) -> Response | EventStream:
        await compiled()
        try:
            page.check(_names(request))
        except CallError as error:
            return self._problem(problems.problem_of(error), page.path, self._asked(request))
        seen, asked = request.headers.get("last-event-id", ""), self._asked(request)
        events = self._looks.snapshot_for(page, asked).events(seen)
        known = self._while_known(asked, events)
        beat = ServerSentEvent(self._here, name=BEAT).encoded
        return EventStream(known, self._closing, beat=beat, every=BEAT_EVERY)

    async def _while_known(
        self, asked: PageRequest, events: AsyncGenerator[ServerSentEvent, None]
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield these until the reader's login or certificate has expired. Then the page reconnects
        and receives the error.
        """
        authentication, who = self._services.authentication, asked.caller.who
        with suppress(UnauthenticatedError):
            async with (
                aclosing(events),
                aclosing(authentication.readers.until_over(who, events)) as read,
            ):
                async for event in read:
                    try:
                        async with asyncio.timeout(PROMPT):
                            await authentication.check(who)
                    except (Unavailable, TimeoutError) as away:  # the page shows it
                        why = str(away) or "no answer"
                        log.info("reader not verified: peer=%s error=%s", asked.caller.source, why)
                    yield event

    async def _page(self, page: Page, request: Request) -> Response:
        await compiled()
        try:
            page.check(_names(request))
        except CallError as error:
            return self._problem(problems.problem_of(error), request.url.path, self._asked(request))
        asked = self._asked(request)
        own = asked if page.by_turns else replace(asked, turns=None)
        look = self._looks.snapshot_for(page, own)
        message = read_flash(request.cookies.get(FLASH_COOKIE, ""))
        body = await (look.refresh() if message else look.now())
        live = ""
        if page.every is not None and not body.over:
            live = f"/live{request.url.path}" + (
                f"?{request.url.query}" if request.url.query else ""
            )
        beside = await page.beside(asked, body.seen) if page.beside else None
        response = self._framed(
            page.frame, body, page.tab, asked, live=live, flash=message, beside=beside
        )
        if FLASH_COOKIE in request.cookies:
            response.delete_cookie(FLASH_COOKIE)
        return response

    async def _act(self, action: Action, request: Request) -> Response:
        await compiled()
        asked = self._asked(request)
        back = referred(request.scope)
        try:
            asked = replace(self._asked(request, await fields_of(request)), turns=None)
            done = await action.do(asked)
        except ClientDisconnect:
            log.info("caller disconnected during a form")
            return Response(status_code=400)
        except RequestProblem as refusal:
            return self._problem(refusal.body, back, asked)
        except (CallError, Unavailable) as error:
            if action.again is not None:
                return await self._again(action.again, asked, error)
            return self._problem(problems.problem_of(error), back, asked)
        response = RedirectResponse(local(asked.fields.get(RETURN, ""), done.to), 303)
        message = self._lately.record(asked.caller.actor, asked.fields, done.message)
        send_flash(response, message, secure=request.url.scheme == "https")
        return response

    async def _again(
        self, page: Page, asked: PageRequest, error: CallError | Unavailable
    ) -> Response:
        typed = {name: asked.fields[name] for name in page.asks if name in asked.fields}
        filled = replace(asked, query={**asked.query, **typed})
        body = shown(page, filled, await page.read(filled))
        if isinstance(error, CallError):
            rename(error, in_words)
        wrong = refused(error)
        body = replace(body, html=wrong.html + body.html, status=wrong.status)
        return self._framed(page.frame, body, page.tab, asked)

    @property
    def _here(self) -> str:
        """Return this member's name; empty without a tenure."""
        cluster = self._services.cluster
        own = cluster.view().member(cluster.tenure)
        return own.name if own else ""

    def _asked(self, request: Request, fields: Mapping[str, str] = NOTHING) -> PageRequest:
        query = {name: value for name, value in request.query_params.items() if value}
        who = caller_of(request)
        shared = self._turns, self._recent
        return PageRequest(self._services, who, request.path_params, query, fields, *shared)

    def _problem(self, problem: Mapping[str, Any], back: str, asked: PageRequest) -> Response:
        html = render("problem_body.html", seen=problem)
        body = Body(html, "", problem["title"], status=problem["status"])
        return self._framed("frame.html", body, "", asked, back=back)

    def _framed(
        self, frame: str, body: Body, tab: str, asked: PageRequest, **values: Any
    ) -> Response:
        html = render(
            frame,
            body=body.html,
            title=body.title,
            seen=body.seen,
            tabs=self._tabs,
            tab=tab,
            here=self._here,
            actor=asked.caller.actor if self._services.authentication.demanded else "",
            link=asked.link,
            may=asked.may,
            query=asked.query,
            **{"live": "", "flash": None, "back": "", "beside": None, **values},
        )
        return HTMLResponse(stamped(html), body.status, headers={"cache-control": "no-store"})


def _names(request: Request) -> list[str]:
    return [name for name, _ in request.query_params.multi_items()]
