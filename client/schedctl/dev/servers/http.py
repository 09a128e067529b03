"""GET and POST to a server on loopback: past any proxy; an answer of any status is an answer."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """HTTP status and body."""

    status: int
    body: bytes


def fetch(url: str, timeout: float = 2.0, trust: ssl.SSLContext | None = None) -> HttpAnswer | None:
    """GET `url`; None when nobody answers within `timeout` seconds. `trust`: for https."""
    return _send("GET", url, None, timeout, trust)


def post(url: str, body: Mapping[str, Any], timeout: float = 2.0) -> HttpAnswer | None:
    """POST JSON to `url`; None when there is no answer within `timeout` seconds."""
    return _send("POST", url, json.dumps(body), timeout, None)


def _send(
    method: str, url: str, body: str | None, timeout: float, trust: ssl.SSLContext | None
) -> HttpAnswer | None:
    parts = urlsplit(url)
    session = (
        http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=trust)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=timeout)
    )
    try:
        session.request(method, parts.path or "/", body, {"Accept": "application/json"})
        response = session.getresponse()
        return HttpAnswer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        session.close()
