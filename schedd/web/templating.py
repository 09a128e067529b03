"""Render templates. All values are escaped, except HTML rendered here."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from google.protobuf.timestamp_pb2 import Timestamp
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from schedd.web import formatting

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"

ONCE: Final = "request_id"
"""The field of a form that identifies one rendering of a page."""
_STAMP: Final = Markup('<input type="hidden" name="request_id" value="{}" autocomplete="off">')
_UNSTAMPED: Final = _STAMP.format("")

_environment: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    return _environment.get_template(template).render(**values)


async def compiled() -> None:
    """Compile all templates before the first page, in a thread: it takes 0.5 s."""
    if not _compile.cache_info().currsize:
        await asyncio.to_thread(_compile)


@cache
def _compile() -> None:
    for name in _environment.list_templates(extensions=["html"]):
        _environment.get_template(name)


def stamped(html: str) -> str:
    """Return the page with a new request id in its forms. HTML that readers share has none; in
    forms that came by a stream, the script sets its own.
    """
    return html.replace(_UNSTAMPED, _STAMP.format(secrets.token_hex(16)))


def linker(namespace: str) -> Callable[..., str]:
    """Return the function that makes addresses in a namespace: `link("jobs", name, at=…)`."""

    def link(*segments: str, **query: object) -> str:
        given = {"namespace": namespace, **query}
        text = urlencode({name: value for name, value in given.items() if value not in ("", None)})
        path = "/" + "/".join(quote(segment, safe="") for segment in segments)
        return f"{path}?{text}" if text else path

    return link


@cache
def _asset(name: str) -> str:
    """Return the address of a file in `static/`. It changes with the file, for caches."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?{digest}"


def _moment(at: datetime | Timestamp, now: datetime) -> Markup:
    """Return a time as HTML: short text, exact value in `datetime` and tooltip."""
    at = at if isinstance(at, datetime) else formatting.instant(at)
    exact = formatting.iso(at)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        exact, formatting.clock(at, now)
    )


def _span(length: timedelta | None) -> str:
    return "–" if length is None else formatting.span(length)


def _capitalised(text: str) -> str:
    """Capitalize the first letter; the name of a field (`runId`) stays as it is."""
    first = text.partition(" ")[0].rstrip(":")
    is_name = "_" in first or first[1:] != first[1:].lower()
    return text if is_name else text[:1].upper() + text[1:]


_environment.globals |= {
    "asset": _asset,
    "linker": linker,
    "once": _UNSTAMPED,
    "moment": _moment,
    "look_of": formatting.look_of,
    "reason": formatting.reason,
    "lateness": formatting.lateness,
    "took": formatting.took,
    "schedule": formatting.schedule,
}
_environment.filters |= {"span": _span, "iso": formatting.iso, "capitalised": _capitalised}
