"""Is this process alive, and should it be asked: `/healthz` and `/readyz`.

Alive means that the event loop answers. Ready means that nothing speaks against it: the reasons
are told by whoever wires the member (no tenure, no trust, database away), one line each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Readiness: TypeAlias = Callable[[], Sequence[str]]
"""Why this member isn't ready, a line each; nothing when it is. Cheap: no I/O."""


def nothing() -> Sequence[str]:
    """Nothing to say."""
    return ()


def routes(readiness: Readiness, notes: Readiness = nothing) -> list[Route]:
    """`/healthz` and `/readyz`. `notes`: what somebody who looks should know all the same."""

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
