"""Serve the probes `/healthz` and `/readyz`.

Alive: the event loop answers. Ready: there is no reason against it (no tenure, lease not trusted,
database unavailable). The caller of `routes` supplies the reasons, one line each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Readiness: TypeAlias = Callable[[], Sequence[str]]
"""Returns the reasons why this member isn't ready, one line each; empty if it is. No I/O."""


def nothing() -> Sequence[str]:
    """Return no lines."""
    return ()


def routes(readiness: Readiness, notes: Readiness = nothing) -> list[Route]:
    """Return `/healthz` and `/readyz`. `notes`: warnings that don't affect readiness."""

    async def healthz(_: Request) -> Response:
        return _answer(200, {"status": "alive"})

    async def readyz(_: Request) -> Response:
        reasons = list(readiness())
        status = "not ready" if reasons else "ready"
        body = {"status": status, "reasons": reasons, "notes": list(notes())}
        return _answer(503 if reasons else 200, body)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _answer(status: int, body: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(json.dumps(body) + "\n", status, headers, "application/json")
