"""The keys of a configuration, read off its dataclasses.

    class Etcd:    endpoints: tuple[str, ...]; password: str = secret("")
    class Config:  etcd: Etcd; tls: TLS | None = None; drain_timeout: timedelta = ...

A field whose type is a dataclass is a section. Every other field is a key, with one of the types
of `values.SHAPES`. The path of a key names it everywhere: `etcd.endpoints` is `[etcd] endpoints`,
`PREFIX_ETCD__ENDPOINTS` and `--etcd-endpoints`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_origin, get_type_hints

from schedkit.config.lines import Path
from schedkit.config.values import SHAPES, without_none


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One setting: where it stands, its type (without None), and whether it may be shown."""

    path: Path
    kind: Any
    secret: bool

    @property
    def dotted(self) -> str:
        """`etcd.endpoints`."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """`--etcd-endpoints`."""
        return flag_of(self.path)

    def variable(self, prefix: str) -> str:
        """`SCHEDD_ETCD__ENDPOINTS`."""
        return f"{prefix}_" + "__".join(self.path).upper()


def flag_of(path: Path) -> str:
    """The flag for a path."""
    return "--" + "-".join(path).replace("_", "-")


def secret(default: str | None) -> Any:
    """The default of a field that stands in no message, no log and no `repr`."""
    return field(default=default, repr=False, metadata={"secret": True})


def section(kind: Any) -> type | None:
    """The dataclass of a section, `T` or `T | None`; None for a key's type."""
    bare = without_none(kind)
    return bare if isinstance(bare, type) and dataclasses.is_dataclass(bare) else None


def fields_of(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The settable fields of a dataclass, each with its resolved type."""
    kinds = get_type_hints(cls)
    for each in dataclasses.fields(cast("Any", cls)):
        if each.init:
            yield each, kinds[each.name]


def keys_of(cls: type, at: Path = ()) -> Iterator[SettingKey]:
    """All keys of a configuration, sections descended into.

    Raises:
        TypeError: a field has a type that can't be configured.
    """
    for each, kind in fields_of(cls):
        path = (*at, each.name)
        inner = section(kind)
        if inner is not None:
            yield from keys_of(inner, path)
            continue
        bare = without_none(kind)
        if get_origin(bare) is not Literal and bare not in SHAPES:
            raise TypeError(f"{'.'.join(path)}: no setting can have the type {kind}")
        yield SettingKey(path, bare, bool(each.metadata.get("secret")))
