"""`--set schedd.member_ttl=3s`: settings of daemons from the command line.

The first word says whose: `schedd` (every member), `workerd` (every worker), one daemon's name
(`m1`, `w2`), `postgres` or `etcd`. The rest is a dotted key of its configuration file, a setting
of PostgreSQL, or a flag of etcd. The value is TOML where it can be read as such (`1`, `true`,
`["a", "b"]`), else it is a string. Whether the key exists is for the daemon's own check of its
configuration to say, or for PostgreSQL and etcd.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schedctl.dev.errors import BadOverride

OURS = {"name", "listen.grpc", "listen.http", "spool"}
"""Keys that tell the daemons of a cluster apart; `dev` deals them out itself."""
PASSWORD = {"etcd.user", "etcd.password"}
"""Keys of the login that `dev` sets in etcd: etcd rejects every other one."""


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`: whose, the path of the key, the value."""

    target: str
    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return ".".join((self.target, *self.path))


def parse(text: str) -> Override:
    """Read one `TARGET.KEY[.KEY…]=VALUE`.

    Raises:
        BadOverride: it has another form, or names a key that `dev` deals out itself.
    """
    name, equals, value = text.partition("=")
    target, *path = (word.strip() for word in name.split("."))
    if not equals or not path or not all((target, *path)):
        raise BadOverride(
            f"--set {text!r} is not of the form TARGET.KEY=VALUE",
            "for example --set schedd.member_ttl=3s or --set workerd.slots=1",
        )
    if ".".join(path) in OURS:
        raise BadOverride(
            f"--set {text!r}: {'.'.join(path)} differs from daemon to daemon",
            "schedctl dev chooses it; D/cluster.json tells what it chose",
        )
    if ".".join(path) in PASSWORD:
        raise BadOverride(
            f"--set {text!r}: schedctl dev sets {'.'.join(path)} itself",
            "D/cluster.json has user and password",
        )
    return Override(target, tuple(path), _value(value.strip()))


def apply(
    config: Mapping[str, Any], overrides: Iterable[Override], *targets: str
) -> dict[str, Any]:
    """The configuration with all overrides for these targets put in; later ones win.

    Raises:
        BadOverride: one goes through a key that is no table.
    """
    result = dict(config)
    for override in overrides:
        if override.target in targets:
            result = _put(result, override.path, override.value)
    return result


def _put(table: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {**table, head: value}
    inner = table.get(head, {})
    if not isinstance(inner, Mapping):
        raise BadOverride(f"--set …{'.'.join(path)}: {head} is a value, not a table")
    return {**table, head: _put(inner, tuple(rest), value)}


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # More than the one key: the text held a line break, and is a string.
    return parsed["value"] if len(parsed) == 1 else text
