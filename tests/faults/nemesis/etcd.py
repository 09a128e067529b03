"""Faults of etcd: members and majorities lost, compacted under a watch, full, restored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world import etcd
from faults.world.service import Service
from faults.world.world import World
from support.wait import wait_until

SERVES_WITHIN = 30.0
UNSEEN_WITHIN = 3.0
MARK = "nemesis/compaction"


@contextmanager
def members_lost(journal: Journal, members: Sequence[Service]) -> Iterator[Fault]:
    """SIGKILL; started again on their data at the end."""
    names = ",".join(member.name for member in members)
    with journal.fault("etcd members killed", names) as fault:
        for member in members:
            member.kill()
        _all_dead(members)
        fault.took_effect(what="the processes are gone")
        try:
            yield fault
            _all_dead(members)
        finally:
            fault.end()
            for member in members:
                member.start()
            for member in members:
                wait_until(member.ready, SERVES_WITHIN, f"{member.name} to serve")


@contextmanager
def compacted_unseen(journal: Journal, world: World) -> Iterator[Fault]:
    """Compacted while no member has a connection: their watches resume where nothing is left.

    Silence would not do, for a stream outlives a short one: all connections of members to etcd are
    ended at once, and led to a host that resets them, for less time than a lease leaves. Seen by an
    old revision, which is gone, and by the logs of all members: each has lost its watch.
    """
    marks = [(member, member.mark()) for member in world.members.values()]

    def unseen() -> bool:
        return all("in etcd restarts" in member.said_since(mark) for member, mark in marks)

    with journal.fault("etcd compacted", "etcd") as fault:
        old = _written(world)
        with _away(world):
            newest = _written(world)  # a watch resumed after the compaction has missed this
            world.etcdctl("compaction", str(newest))
        try:
            world.etcdctl("get", MARK, f"--rev={old}")
        except RuntimeError as refused:
            if "compacted" not in str(refused):
                raise
        else:
            raise NoEffect(f"revision {old} can still be read")
        world.etcdctl("del", MARK)
        lost = f"every member to lose its watch while revision {newest} was compacted"
        fault.effect_of(unseen, UNSEEN_WITHIN, lost)
        yield fault


@contextmanager
def _away(world: World) -> Iterator[None]:
    """No member has a connection to etcd, nor gets one."""
    network, astray = world.network, world.proxy_host
    pairs = [(m.host, e.host) for e in world.etcds.values() for m in world.members.values()]
    with ExitStack() as undo:
        for member in world.etcds.values():
            network.add_address(member.host, astray)
            undo.callback(network.forget, member.host, astray)
        for source, target in pairs:
            network.detour(source, target, astray)
            undo.callback(network.straighten, source, target, astray)
        for source, target in pairs:
            network.abort(source, target)
        yield


def _written(world: World) -> int:
    """Write something; the revision that it made."""
    answer = json.loads(world.etcdctl("put", MARK, "x", "-w", "json"))
    return int(answer["header"]["revision"])


@contextmanager
def full(journal: Journal, world: World) -> Iterator[Fault]:
    """The space quota is used up: NOSPACE, no write is taken. Emptied and disarmed at the end."""
    with journal.fault("etcd NOSPACE", "etcd") as fault:
        filling = "x" * 1_000_000
        for number in range(200):
            if _alarmed(world):
                fault.took_effect(what="alarm NOSPACE", written=number)
                break
            _put(world, f"nemesis/fill/{number}", filling)
        try:
            yield fault
            if not _alarmed(world):
                raise NoEffect("the alarm was gone before the end")
        finally:
            fault.end()
            world.etcdctl("del", "--prefix", "nemesis/fill/")
            world.etcdctl("compaction", str(revision_of(world)))
            for member in world.etcds.values():
                etcd.ctl([member], "defrag")
            world.etcdctl("alarm", "disarm")
            if _alarmed(world):
                raise NoEffect("the alarm is not to be disarmed")


def snapshot(world: World, file: Path) -> int:
    """Save etcd as it is now; answers its revision."""
    member = next(iter(world.etcds.values()))
    revision = revision_of(world)
    etcd.ctl([member], "snapshot", "save", os.fspath(file))
    return revision


@contextmanager
def restored(journal: Journal, world: World, file: Path, saved: int) -> Iterator[Fault]:
    """All of etcd is lost and comes back as it was at `saved`: revisions go back, unbumped."""
    before = revision_of(world)
    with journal.fault("etcd restored", "etcd", saved=saved, before=before) as fault:
        members = list(world.etcds.values())
        for member in members:
            member.kill()
        for member in members:
            _restore(member, world.work, file)
            member.start()
        for member in members:
            wait_until(member.ready, SERVES_WITHIN, f"{member.name} to serve")
        after = revision_of(world)
        if after >= before:
            raise NoEffect(f"revisions did not go back: {before} → {after}")
        fault.took_effect(what="revisions went back", before=before, after=after)
        yield fault


def revision_of(world: World) -> int:
    """Etcd's revision now."""
    answer = json.loads(world.etcdctl("get", "nemesis", "-w", "json"))
    return int(answer["header"]["revision"])


def _restore(member: Service, work: Path, file: Path) -> None:
    data = work / member.name
    shutil.rmtree(data)
    words = list(member.argv)
    wanted = ("--name", "--initial-cluster")
    flags = [word for flag in wanted for word in (flag, words[words.index(flag) + 1])]
    peers = words[words.index("--initial-advertise-peer-urls") + 1]
    etcd.ctl(
        [member],
        *("snapshot", "restore", os.fspath(file), "--data-dir", os.fspath(data)),
        *(*flags, "--initial-advertise-peer-urls", peers),
    )


def _all_dead(members: Sequence[Service]) -> None:
    if living := [member.name for member in members if member.alive()]:
        raise NoEffect(f"{', '.join(living)} of etcd live")


def _alarmed(world: World) -> bool:
    return "NOSPACE" in world.etcdctl("alarm", "list")


def _put(world: World, key: str, value: str) -> None:
    running = [member for member in world.etcds.values() if member.alive()]
    subprocess.run(
        [*etcd.ctl_argv(running), "put", key],
        input=value,
        env=etcd.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,  # the one that hits the quota is refused, and that is what we are after
    )


@contextmanager
def all_lost(journal: Journal, world: World, count: int) -> Iterator[Fault]:
    """The leader of etcd and so many others in all: 1 the leader alone, 2 the majority."""
    leader = wait_until(world.etcd_leader, SERVES_WITHIN, "etcd to have a leader")
    assert leader is not None
    others = [member for member in world.etcds.values() if member is not leader]
    with ExitStack() as stack:
        yield stack.enter_context(members_lost(journal, [leader, *others[: count - 1]]))
