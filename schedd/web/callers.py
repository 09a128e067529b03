"""Who asks for something over HTTP."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from schedd.api.services import Caller

DEADLINE: Final = 30.0
"""Seconds that a call may take; HTTP callers don't say."""


def caller_of(request: Request) -> Caller:
    """Who calls. Without TLS and tokens everybody on the host is `anonymous`."""
    peer = request.client
    source = f"http:{peer.host}:{peer.port}" if peer else "http"
    return Caller(actor="anonymous", source=source, deadline=DEADLINE)
