"""What a cluster shall consist of: what is remembered, completed with what is asked for.

Only decides; starts nothing and writes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schedctl.dev.errors import BadOverride, DevError
from schedctl.dev.overrides import Override, parse
from schedctl.dev.records import PORTS, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers.ports import is_free, reserve

TARGETS = {PartKind.MEMBER: "schedd", PartKind.WORKER: "workerd"}
"""Who all daemons of a kind are, in a `--set`."""
STORES = {
    PartKind.ETCD: {True: "true", False: "false"},
    PartKind.POSTGRES: {True: "on", False: "off"},
}
"""The stores that a `--set` can name, each with its words for yes and no."""
MEMBERS, WORKERS = 3, 2
"""How many a new cluster has, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What `up` is asked for. None: as it was last time, or the default of a new cluster."""

    members: int | None = None
    workers: int | None = None
    slots: int | None = None
    overrides: tuple[str, ...] = ()
    foreign_dsn: str | None = None
    tls: bool | None = None


def complete(before: ClusterState | None, wishes: Wishes) -> ClusterState:
    """The state to bring about: all parts in starting order, each with its ports.

    Parts that run stay as they are, also those no longer asked for.

    Raises:
        DevError: a port that running parts rely on is taken by a stranger.
        BadOverride: workers without a member.
    """
    known = before or ClusterState()
    if wishes.tls not in (None, known.tls) and any(True for _ in known.living()):
        raise DevError("what runs here was started otherwise", "use dev down first")
    dsn = wishes.foreign_dsn or known.foreign_dsn
    wanted = {"etcd": PartKind.ETCD}
    if dsn is None:
        wanted["postgres"] = PartKind.POSTGRES
    wanted |= _daemons(before, wishes)
    wanted |= {part.name: part.kind for part in known.living()}
    order = list(PartKind)
    names = sorted(wanted, key=lambda name: (order.index(wanted[name]), len(name), name))
    parts = {name: known.parts.get(name) or ClusterPart(name, wanted[name]) for name in names}
    return ClusterState(
        parts=_with_ports(parts),
        slots=wishes.slots or known.slots,
        overrides=_merged(known.overrides, wishes.overrides),
        foreign_dsn=dsn,
        tls=known.tls if wishes.tls is None else wishes.tls,
        password=known.password or _new_password(known),
    )


def overrides_of(state: ClusterState) -> list[Override]:
    """The state's overrides, read and checked against its daemons.

    Raises:
        BadOverride: one can't be read, or is for a daemon that is not there.
    """
    daemons = [part.name for part in (*state.of(PartKind.MEMBER), *state.of(PartKind.WORKER))]
    stores = [part.name for kind in STORES for part in state.of(kind)]
    known = ["schedd", "workerd", *daemons, *stores]
    overrides = [parse(text) for text in state.overrides]
    for override in overrides:
        if override.target not in known:
            raise BadOverride(
                f"--set {override}: there is no daemon {override.target!r}",
                f"the first word is one of {', '.join(known)}",
            )
    return overrides


def settings_of(state: ClusterState, store: PartKind) -> dict[str, str]:
    """Return the state's overrides of PostgreSQL or etcd, as their command lines take them.

    >>> changed = State(overrides=("postgres.fsync=true", "etcd.max-txn-ops=64"))
    >>> settings_of(changed, Kind.POSTGRES), settings_of(changed, Kind.ETCD)
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
    """Daemons whose files together hold every override: one of each kind, and all that are named.

    >>> overridden([], [])
    []
    """
    targets = {override.target for override in overrides}
    kinds = {kind: target for kind, target in TARGETS.items() if target in targets}
    firsts = {kind: next((p.name for p in parts if p.kind is kind), None) for kind in kinds}
    return [part for part in parts if part.name in targets or firsts.get(part.kind) == part.name]


def _new_password(known: ClusterState) -> str | None:
    """Return a random password; None while parts run that an older version started without one."""
    return None if any(True for _ in known.living()) else secrets.token_hex(24)


def _daemons(before: ClusterState | None, wishes: Wishes) -> dict[str, PartKind]:
    members = _count(wishes.members, before, PartKind.MEMBER, MEMBERS)
    workers = _count(wishes.workers, before, PartKind.WORKER, WORKERS if members else 0)
    if workers and not members:
        raise BadOverride("workers need a member to attach to", "ask for --members 1 or more")
    return {f"m{number}": PartKind.MEMBER for number in range(1, members + 1)} | {
        f"w{number}": PartKind.WORKER for number in range(1, workers + 1)
    }


def _count(wished: int | None, before: ClusterState | None, kind: PartKind, default: int) -> int:
    if wished is not None:
        return wished
    return default if before is None else len(before.of(kind))


def _merged(known: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """One text for each key; the later wins."""
    return tuple({text.partition("=")[0].strip(): text for text in (*known, *more)}.values())


def _with_ports(parts: Mapping[str, ClusterPart]) -> dict[str, ClusterPart]:
    """Give ports to parts without any, and new ones to those whose ports were taken meanwhile."""
    someone_runs = any(part.alive() for part in parts.values())
    homeless = []
    for part in parts.values():
        if part.alive():
            continue
        taken = [port for port in part.ports.values() if not is_free(port)]
        if taken and someone_runs:
            raise DevError(
                f"port {taken[0]} of {part.name} is taken by another program",
                "what runs knows it by that port: free it, or use dev down and then dev up",
            )
        if taken or not part.ports:
            homeless.append(part)
    used = {port for part in parts.values() for port in part.ports.values()}
    fresh = iter(reserve(sum(len(PORTS[part.kind]) for part in homeless), but=used))
    moved = {
        part.name: replace(part, ports={use: next(fresh) for use in PORTS[part.kind]})
        for part in homeless
    }
    return {name: moved.get(name, part) for name, part in parts.items()}
