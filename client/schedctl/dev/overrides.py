"""`--set schedd.member_ttl=3s`: settings of daemons from the command line.

The first word is the target: `schedd` (every member), `workerd` (every worker), one daemon's name
(`m1`, `w2`), `postgres` or `etcd`. The rest is a dotted key of its configuration file, a setting of
PostgreSQL, or a flag of etcd. The value is parsed as TOML if possible (`1`, `true`, `["a", "b"]`),
else it is a string. The daemon, PostgreSQL or etcd checks whether the key exists.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schedctl.dev.errors import BadOverride

OURS = {"name", "listen.grpc", "listen.http", "spool"}
"""Keys that differ between the daemons of a cluster; `dev` assigns them."""
PASSWORD = {"etcd.user", "etcd.password"}
"""Keys of the login that `dev` creates in etcd."""


@dataclass(frozen=True, slots=True)
class Override:
    """A `--set`: target, path of the key, value."""

    target: str
    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return ".".join((self.target, *self.path))


def parse(text: str) -> Override:
    """Parse one `TARGET.KEY[.KEY…]=VALUE`.

    Raises:
        BadOverride: it has another form, or names a key that `dev` assigns.
    """
    name, equals, value = text.partition("=")
    target, *path = (word.strip() for word in name.split("."))
    if not equals or not path or not all((target, *path)):
        raise BadOverride(
            f"--set {text!r} isn't a valid TARGET.KEY=VALUE",
            "write for example --set schedd.member_ttl=3s or --set workerd.slots=1",
        )
    if ".".join(path) in OURS:
        raise BadOverride(
            f"--set {text!r}: {'.'.join(path)} can't be set: schedctl dev gives each process its"
            " own value",
            "remove this --set; cluster.json shows the values",
        )
    if ".".join(path) in PASSWORD:
        raise BadOverride(
            f"--set {text!r}: {'.'.join(path)} can't be set: schedctl dev creates this user",
            "remove this --set; cluster.json shows the user and its password",
        )
    return Override(target, tuple(path), _value(value.strip()))


def apply(
    config: Mapping[str, Any], overrides: Iterable[Override], *targets: str
) -> dict[str, Any]:
    """Return the configuration with the overrides for these targets; later ones win.

    Raises:
        BadOverride: a key inside another one that isn't a table.
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
        raise BadOverride(
            f"--set …{'.'.join(path)} isn't valid: {head} is a single value and has no keys",
            f"remove the keys below {head}, or remove one of the two --set options",
        )
    return {**table, head: _put(inner, tuple(rest), value)}


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # More than one key: the text has a line break, and is a string.
    return parsed["value"] if len(parsed) == 1 else text
