"""Is the cluster ready? One question, answered by the members over HTTP.

Ready means: every member says so itself (`/readyz`), and any of them, asked for `/api/v1/cluster`,
names a leader, every shard owned, and every worker attached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from schedctl.dev.http import fetch
from schedctl.dev.records import Kind, State


def lacking(state: State) -> str | None:
    """What still keeps the cluster from being ready, in words; None when nothing does."""
    members = state.of(Kind.MEMBER)
    for member in members:
        answer = fetch(f"http://{member.address('http')}/readyz")
        if answer is None:
            return f"{member.name} does not answer at {member.address('http')}"
        if answer.status != 200:
            return f"{member.name} is not ready: {_line(answer.body)}"
    for member in members:
        if (view := cluster_view(member.address("http"))) is None:
            return f"{member.name} does not tell the state of the cluster"
        if (lack := _lacking_in(view, len(state.of(Kind.WORKER)))) is not None:
            return f"{lack}, says {member.name}"
    return None


def cluster_view(http: str) -> Mapping[str, Any] | None:
    """`GET /api/v1/cluster` of one member; None when it doesn't answer with it."""
    answer = fetch(f"http://{http}/api/v1/cluster")
    if answer is None or answer.status != 200:
        return None
    view = json.loads(answer.body)
    return view if isinstance(view, Mapping) else None


def leader(state: State) -> str | None:
    """The name of the leader, as the first member that answers with one tells it."""
    for member in state.of(Kind.MEMBER):
        view = cluster_view(member.address("http")) if member.alive() else None
        if view is not None and (name := view.get("leader")):
            return str(name)
    return None


def _lacking_in(view: Mapping[str, Any], workers: int) -> str | None:
    if not view.get("leader"):
        return "there is no leader"
    owned, shards = view.get("owned") or 0, view.get("shards") or 0
    if not shards or owned != shards:
        return f"{owned} of {shards} shards have an owner"
    live = view.get("workers") or 0
    return f"{live} of {workers} workers are attached" if live < workers else None


def _line(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200] or "no reason given"
