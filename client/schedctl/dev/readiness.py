"""Is the cluster ready? One question, answered by its daemons over HTTP.

Ready means: every daemon says so itself (`/readyz`); every member, asked for `/api/v1/cluster`,
names a leader and every shard owned; every worker is attached to every member, as its metrics tell.
One that is drained is as ready as it was left.
A count of workers by their leases would not do: one that was just killed still counts.
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
"""What a drained worker says of itself."""


def lacking(state: ClusterState, trust: ssl.SSLContext | None = None) -> str | None:
    """What still keeps the cluster from being ready, in words; None when nothing does. `trust`:
    how members are asked over HTTPS.
    """
    members, workers = (
        {part.name: part.address("http") for part in state.of(kind)}
        for kind in (PartKind.MEMBER, PartKind.WORKER)
    )
    return lacking_among(members, workers, trust)


def lacking_among(
    members: Mapping[str, str], workers: Mapping[str, str], trust: ssl.SSLContext | None = None
) -> str | None:
    """The same of any daemons: name → `host:port` of their HTTP."""
    for name, http in (*members.items(), *workers.items()):
        url = f"http://{http}" if name in workers else _url(http, trust)
        answer = fetch(f"{url}/readyz", trust=trust)
        if answer is None:
            return f"{name} does not answer at {http}"
        if answer.status != 200 and not (name in workers and _line(answer.body) == DRAINING):
            return f"{name} is not ready: {_line(answer.body)}"
    for name, http in members.items():
        if (view := cluster_view(http, trust)) is None:
            return f"{name} does not tell the state of the cluster"
        if (lack := _lacking_in(view)) is not None:
            return f"{lack}, says {name}"
    for name, http in workers.items():
        if (attached := _members_attached(http)) < len(members):
            return f"{name} is attached to {attached} of {len(members)} members"
    return None


def cluster_view(http: str, trust: ssl.SSLContext | None = None) -> Mapping[str, Any] | None:
    """`GET /api/v1/cluster` of one member; None when it doesn't answer with it."""
    answer = fetch(f"{_url(http, trust)}/api/v1/cluster", trust=trust)
    if answer is None or answer.status != 200:
        return None
    view = json.loads(answer.body)
    return view if isinstance(view, Mapping) else None


def _url(http: str, trust: ssl.SSLContext | None) -> str:
    return f"http://{http}" if trust is None else f"https://{http}"


def leader(state: ClusterState, trust: ssl.SSLContext | None = None) -> str | None:
    """The name of the leader, as the first member that answers with one tells it."""
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
