"""GET and POST to a server on loopback, without a proxy. Every status is returned."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes


def fetch(url: str, timeout: float = 2.0, trust: ssl.SSLContext | None = None) -> HttpAnswer | None:
    """GET `url`; return None without an answer within `timeout` seconds. `trust` is for https."""
    return _send("GET", url, None, timeout, trust)


def post(url: str, body: Mapping[str, Any], timeout: float = 2.0) -> HttpAnswer | None:
    """POST JSON to `url`; return None without an answer within `timeout` seconds."""
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
