"""The planned state of a cluster: the recorded one, completed with the request.

No process is started and no file is written here.
"""

import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schedctl.dev.errors import BadOverride, DevError
from schedctl.dev.records import PORTS, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers.processes import is_free, reserve
from schedkit.records import dataclass, replace

# `--set schedd.member_ttl=3s`: settings of daemons from the command line.
#
# The first word is the target: `schedd` (every member), `workerd` (every worker), one daemon's
# name (`m1`, `w2`), `postgres` or `etcd`. The rest is a dotted key of its configuration file, a
# setting of PostgreSQL, or a flag of etcd. The value is parsed as TOML if possible (`1`, `true`,
# `["a", "b"]`), else it is a string. The daemon, PostgreSQL or etcd checks whether the key exists.

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
    """Parse one `TARGET.KEY[.KEY…]=VALUE`. Raises BadOverride: it has another form, or names a key
    that `dev` assigns.
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
    """Return the configuration with the overrides for these targets; later ones win. Raises
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
            f"--set …{'.'.join(path)} isn't valid, because two --set options contradict each"
            f" other: {head} is a single value and has no keys",
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


TARGETS = {PartKind.MEMBER: "schedd", PartKind.WORKER: "workerd"}
"""The target of all daemons of a kind, in a `--set`."""
STORES = {
    PartKind.ETCD: {True: "true", False: "false"},
    PartKind.POSTGRES: {True: "on", False: "off"},
}
"""The stores that a `--set` can name, each with its words for true and false."""
MEMBERS, WORKERS = 3, 2
"""Default numbers in a new cluster."""


@dataclass(frozen=True, slots=True)
class Requested:
    """The options of `up`. None: the recorded value, or the default of a new cluster."""

    members: int | None = None
    workers: int | None = None
    slots: int | None = None
    overrides: tuple[str, ...] = ()
    foreign_dsn: str | None = None
    tls: bool | None = None


def complete(before: ClusterState | None, requested: Requested) -> ClusterState:
    """Return the planned state: all parts in starting order, each with its ports.

    Running parts are kept, also those that aren't requested any more.

    Raises:
        DevError: another program uses a port that running parts depend on.
        BadOverride: workers without a member.
    """
    known = before or ClusterState()
    if requested.tls not in (None, known.tls) and any(True for _ in known.living()):
        raise DevError(
            "--tls can't be changed while the cluster runs",
            "stop the cluster first: schedctl dev down",
        )
    dsn = requested.foreign_dsn or known.foreign_dsn
    wanted = {"etcd": PartKind.ETCD}
    if dsn is None:
        wanted["postgres"] = PartKind.POSTGRES
    wanted |= _daemons(before, requested)
    wanted |= {part.name: part.kind for part in known.living()}
    order = list(PartKind)
    names = sorted(wanted, key=lambda name: (order.index(wanted[name]), len(name), name))
    parts = {name: known.parts.get(name) or ClusterPart(name, wanted[name]) for name in names}
    texts = (*known.overrides, *requested.overrides)  # the later one wins
    overrides = {text.partition("=")[0].strip(): text for text in texts}
    return ClusterState(
        parts=_with_ports(parts),
        slots=requested.slots or known.slots,
        overrides=tuple(overrides.values()),
        foreign_dsn=dsn,
        tls=known.tls if requested.tls is None else requested.tls,
        password=known.password or secrets.token_hex(24),
    )


def overrides_of(state: ClusterState) -> list[Override]:
    """Return the state's overrides, validated against its daemons. Raises BadOverride: one isn't
    valid, or its daemon doesn't exist.
    """
    daemons = [
        part.name
        for part in (*state.parts_of_kind(PartKind.MEMBER), *state.parts_of_kind(PartKind.WORKER))
    ]
    stores = [part.name for kind in STORES for part in state.parts_of_kind(kind)]
    known = ["schedd", "workerd", *daemons, *stores]
    overrides = [parse(text) for text in state.overrides]
    for override in overrides:
        if override.target not in known:
            raise BadOverride(
                f"--set {override}: daemon {override.target!r} not found",
                f"the first word must be one of {', '.join(known)}",
            )
    return overrides


def settings_of(state: ClusterState, store: PartKind) -> dict[str, str]:
    """Return the state's overrides of PostgreSQL or etcd, for their command lines.

    >>> changed = ClusterState(overrides=("postgres.fsync=true", "etcd.max-txn-ops=64"))
    >>> settings_of(changed, PartKind.POSTGRES), settings_of(changed, PartKind.ETCD)
    ({'fsync': 'on'}, {'max-txn-ops': '64'})
    """
    found = [parse(text) for text in state.overrides]
    switches = STORES[store]
    return {
        ".".join(one.path): switches[one.value] if isinstance(one.value, bool) else str(one.value)
        for one in found
        if one.target == store
    }


def overridden(parts: Sequence[ClusterPart], overrides: Sequence[Override]) -> list[ClusterPart]:
    """Return daemons whose files together have every override: one of each kind, and named ones.

    >>> overridden([], [])
    []
    """
    targets = {override.target for override in overrides}
    kinds = {kind: target for kind, target in TARGETS.items() if target in targets}
    firsts = {kind: next((p.name for p in parts if p.kind is kind), None) for kind in kinds}
    return [part for part in parts if part.name in targets or firsts.get(part.kind) == part.name]


def _daemons(before: ClusterState | None, requested: Requested) -> dict[str, PartKind]:
    members = _count(requested.members, before, PartKind.MEMBER, MEMBERS)
    workers = _count(requested.workers, before, PartKind.WORKER, WORKERS if members else 0)
    if workers and not members:
        raise BadOverride("workers need a member", "give --members 1 or more")
    return {f"m{number}": PartKind.MEMBER for number in range(1, members + 1)} | {
        f"w{number}": PartKind.WORKER for number in range(1, workers + 1)
    }


def _count(requested: int | None, before: ClusterState | None, kind: PartKind, default: int) -> int:
    if requested is not None:
        return requested
    return default if before is None else len(before.parts_of_kind(kind))


def _with_ports(parts: Mapping[str, ClusterPart]) -> dict[str, ClusterPart]:
    """Assign ports to parts without any, and to parts whose ports are taken."""
    any_running = any(part.alive() for part in parts.values())
    unassigned = []
    for part in parts.values():
        if part.alive():
            continue
        taken = [port for port in part.ports.values() if not is_free(port)]
        if taken and any_running:
            raise DevError(
                f"port {taken[0]} of {part.name} is used by another program",
                "free the port, or assign new ones: schedctl dev down, then schedctl dev up",
            )
        if taken or not part.ports:
            unassigned.append(part)
    used = {port for part in parts.values() for port in part.ports.values()}
    fresh = iter(reserve(sum(len(PORTS[part.kind]) for part in unassigned), but=used))
    moved = {
        part.name: replace(part, ports={use: next(fresh) for use in PORTS[part.kind]})
        for part in unassigned
    }
    return {name: moved.get(name, part) for name, part in parts.items()}
