"""The daemons' configuration files, made from the cluster's record. No I/O here."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schedctl.dev.overrides import Override, apply
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers import certificates

DRAIN_TIMEOUT = "10s"
"""What `down` gives running jobs; shorter than in production, for a person waits."""
LOOPBACK: Mapping[str, Any] = {"allow": ["127.0.0.0/8", "::1", "localhost"]}
"""Jobs and webhooks of a development cluster may call its own host."""


def render(
    folder: ClusterFolder, state: ClusterState, part: ClusterPart, overrides: Sequence[Override]
) -> str:
    """The TOML of one daemon, its overrides in it: for its kind first, then for itself.

    Raises:
        BadOverride: one doesn't fit.
    """
    if part.kind is PartKind.MEMBER:
        config, target = _member(folder, state, part), "schedd"
    else:
        config, target = _worker(folder, state, part), "workerd"
    config = apply(config, overrides, target)
    return to_toml(apply(config, overrides, part.name))


def _member(folder: ClusterFolder, state: ClusterState, part: ClusterPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "listen": {"grpc": part.address("grpc"), "http": part.address("http")},
        "etcd": {
            "endpoints": [etcd.address("client") for etcd in state.of(PartKind.ETCD)],
            **state.etcd_user,
        },
        "postgres": {"dsn": state.dsn},
        "egress": LOOPBACK,
        "results": _results(folder),
        **certificates.settings_of(folder, state, part.name),
    }


def _worker(folder: ClusterFolder, state: ClusterState, part: ClusterPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "endpoints": [member.address("grpc") for member in state.of(PartKind.MEMBER)],
        "slots": state.slots,
        "spool": str(folder.data(part.name)),
        "drain_timeout": DRAIN_TIMEOUT,
        "egress": LOOPBACK,
        "listen": {"http": part.address("http")},
        "results": _results(folder),
        **certificates.settings_of(folder, state, part.name),
    }


def _results(folder: ClusterFolder) -> dict[str, str]:
    return {"url": folder.data("results").absolute().as_uri()}


def to_toml(config: Mapping[str, Any]) -> str:
    """Write a nested mapping as TOML."""
    return "\n".join(_table(config, ())) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_scalar(value)}"
    for key, value in inner.items():
        here = (*path, key)
        yield f"\n[{'.'.join(map(_key, here))}]"
        yield from _table(value, here)


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case str():
            return _string(value)
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_scalar(v)}' for k, v in value.items())}}}"
        case Sequence():
            return f"[{', '.join(map(_scalar, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _string(text)
