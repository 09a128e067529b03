"""A plain GET to a server on loopback: past any proxy, and an answer of any status is an answer."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP status and body."""

    status: int
    body: bytes


def fetch(url: str, timeout: float = 2.0, trust: ssl.SSLContext | None = None) -> Answer | None:
    """GET `url`; None when nobody answers within `timeout` seconds. `trust`: for https."""
    parts = urlsplit(url)
    session = (
        http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=trust)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=timeout)
    )
    try:
        session.request("GET", parts.path or "/", headers={"Accept": "application/json"})
        response = session.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        session.close()
