"""Readiness of the cluster, read from its daemons over HTTP.

The cluster is ready when every daemon is (`/readyz`), every member reports a leader and an owner of
every shard (`/api/v1/cluster`), and every worker is attached to every member (`/metrics`). A
drained worker is ready. Leases of workers don't count: a worker that was just killed still has one.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from schedctl.dev.records import ClusterState, PartKind
from schedctl.dev.servers.http import fetch

DRAINING: Final = "draining"
"""The answer of a drained worker."""


def lacking(state: ClusterState, trust: ssl.SSLContext | None = None) -> str | None:
    """Return why the cluster isn't ready; None if it is. `trust` is for HTTPS to members."""
    members, workers = (
        {part.name: part.address("http") for part in state.of(kind)}
        for kind in (PartKind.MEMBER, PartKind.WORKER)
    )
    return lacking_among(members, workers, trust)


def lacking_among(
    members: Mapping[str, str], workers: Mapping[str, str], trust: ssl.SSLContext | None = None
) -> str | None:
    """Return why these daemons (name → `host:port` of HTTP) aren't ready; None if they are."""
    for name, http in (*members.items(), *workers.items()):
        url = f"http://{http}" if name in workers else _url(http, trust)
        answer = fetch(f"{url}/readyz", trust=trust)
        if answer is None:
            return f"{name} doesn't answer at {http}"
        if answer.status != 200 and not (name in workers and _line(answer.body) == DRAINING):
            return f"{name} isn't ready: {_line(answer.body)}"
    for name, http in members.items():
        if (view := cluster_view(http, trust)) is None:
            return f"{name} doesn't report the state of the cluster"
        if (lack := _lacking_in(view)) is not None:
            return f"{lack}, as {name} reports"
    for name, http in workers.items():
        if (attached := _members_attached(http)) < len(members):
            return f"{name} is attached to {attached} of {len(members)} members"
    return None


def cluster_view(http: str, trust: ssl.SSLContext | None = None) -> Mapping[str, Any] | None:
    """Return `GET /api/v1/cluster` of one member; None if it fails."""
    answer = fetch(f"{_url(http, trust)}/api/v1/cluster", trust=trust)
    if answer is None or answer.status != 200:
        return None
    view = json.loads(answer.body)
    return view if isinstance(view, Mapping) else None


def _url(http: str, trust: ssl.SSLContext | None) -> str:
    return f"http://{http}" if trust is None else f"https://{http}"


def leader(state: ClusterState, trust: ssl.SSLContext | None = None) -> str | None:
    """Return the name of the leader, from the first member that reports one."""
    for member in state.of(PartKind.MEMBER):
        view = cluster_view(member.address("http"), trust) if member.alive() else None
        if view is not None and (name := view.get("leader")):
            return str(name)
    return None


def _lacking_in(view: Mapping[str, Any]) -> str | None:
    if not view.get("leader"):
        return "there is no leader"
    owned, shards = view.get("owned") or 0, view.get("shards") or 0
    return None if shards and owned == shards else f"{owned} of {shards} shards have an owner"


def _members_attached(http: str) -> int:
    answer = fetch(f"http://{http}/metrics")
    metrics = answer.body.decode() if answer is not None else ""
    found = re.search(r"^workerd_members_attached (\d+)", metrics, re.MULTILINE)
    return int(found[1]) if found else 0


def _line(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200] or "no reason given"
