"""Three etcd, PostgreSQL, three members, four workers: each a real process on a host of its own.

    with World(kept) as world:
        world.members["m1"].kill()
        world.repair()

`repair` restores what a nemesis has left undone and waits until all of it is ready again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.world import daemons, etcd, standby
from faults.world.clock import ClusterClock
from faults.world.commits import Commits
from faults.world.grounds import claim, disk, release
from faults.world.network import ROOT, Host, Network
from faults.world.postgres import Server
from faults.world.service import Service, Supervisor
from schedctl.dev.cluster import why_daemons_not_ready
from support.version_before import HERE, Code
from support.wait import wait_until

TTL = 3.0
"""Seconds that leases of members and workers live: the shortest allowed."""
SLOTS = 16
DATABASE_DISK, SPOOL_DISK = 512, 4
"""Megabytes of the disks that a nemesis may fill."""
UP_WITHIN = 60.0


class World:
    """Hosts: e1…e3, pg, m1…m3, w1…w4; px for proxies; x1 and x2, spare; ps, with a standby.

    `logs`: the folder where every process writes its own. `clock`: of the cluster, moved by a test.
    `code`: the version by which members and workers begin, and the schema is made.
    `replicated`: PostgreSQL has a synchronous standby, whose name the members know, too.
    `handlers`: modules of the folder `tests` with Python handlers, for all workers.
    `database_disk`: megabytes.
    """

    slack = 1.0
    """Seconds that a machine of two cores may take longer than the rules say."""

    def __init__(
        self,
        logs: Path,
        *,
        members: int = 3,
        workers: int = 4,
        ttl: float = TTL,
        clock: ClusterClock | None = None,
        code: Code = HERE,
        replicated: bool = False,
        slots: int = SLOTS,
        handlers: Sequence[str] = (),
        database_disk: int = DATABASE_DISK,
    ) -> None:
        self.logs = logs
        self.code = code
        self.ttl = ttl
        self.clock = clock
        self.replicated = replicated
        self.grounds = claim()
        self.work = self.grounds.work
        try:
            self._assemble(members, workers, slots, handlers, database_disk)
        except BaseException:
            release(self.grounds)
            raise
        self.supervisor = Supervisor([*self.members.values(), *self.workers.values()])
        self.commits = Commits(self.postgres)

    def _assemble(
        self, members: int, workers: int, slots: int, handlers: Sequence[str], database_disk: int
    ) -> None:
        self.network = network = Network(self.grounds)
        network.lay()
        etcds = [network.add(f"e{n}") for n in range(1, 4)]
        disk(self.work / "pg", database_disk)
        if self.clock is not None:
            self.clock.keep_in(self.work)
        self.postgres = Server(network.add("pg"), self.work, self.logs, self.clock)
        self.standby: Server | None = None
        self.dsn = self.postgres.dsn
        if self.replicated:
            self.standby = Server(network.add("ps"), self.work, self.logs)
            self.dsn = standby.dsn_of([self.postgres.host, self.standby.host])
        nodes = [network.add(f"m{n}") for n in range(1, members + 1)]
        hands = [network.add(f"w{n}") for n in range(1, workers + 1)]
        for host in hands:
            disk(self.work / host.name, SPOOL_DISK)
        self.proxy_host = network.add("px")
        self.spares = [network.add(f"x{n}") for n in range(1, 3)]
        self.etcds = {s.name: s for s in etcd.services(etcds, self.work, self.logs)}
        self.members = {
            host.name: daemons.member(
                host, self.work, self.logs, etcds=etcds, dsn=self.dsn, ttl=self.ttl
            )
            for host in nodes
        }
        self.tickets = self.work / "tickets"
        self.tickets.mkdir()
        for member in self.members.values():
            member.environ = daemons.armed(daemons.MEMBER_POINTS, self.tickets)
        self.workers = {
            host.name: daemons.worker(
                host, self.work, self.logs, members=nodes, slots=slots, handlers=handlers
            )
            for host in hands
        }
        for worker in self.workers.values():
            worker.environ = daemons.armed(daemons.WORKER_POINTS, self.tickets)
        for daemon in (*self.members.values(), *self.workers.values()):
            daemons.give(daemon, self.code)
        if handlers:
            for worker in self.workers.values():
                worker.environ["PYTHONPATH"] = os.fspath(Path(__file__).parents[2])

    # ── its life ─────────────────────────────────────────────────────────────────────────────

    def up(self) -> None:
        """Start all of it; returns when all is ready."""
        for member in self.etcds.values():
            member.start()
        self.postgres.initialise()
        self.postgres.service.start()
        wait_until(self.postgres.answers, UP_WITHIN, "PostgreSQL to answer")
        self.postgres.prepare()
        daemons.migrate(next(iter(self.members.values())))
        if self.standby is None:
            self.postgres.keep_commits()
        else:
            standby.keep_commits(self.postgres, self.standby)
        for member in self.etcds.values():
            wait_until(member.ready, UP_WITHIN, f"{member.name} to serve")
        for daemon in (*self.members.values(), *self.workers.values()):
            daemon.start()
        self.supervisor.begin()
        self.await_ready(UP_WITHIN)

    def repair(self) -> None:
        """Start what is dead, continue what stands still, end cuts; wait until all is ready."""
        for service in self.services():
            if not service.revive() and service.process.paused():
                service.resume()
        assert not self.network.rules(), f"the nemesis left rules: {self.network.rules()}"
        self.await_ready(UP_WITHIN)

    def await_ready(self, timeout: float) -> None:
        """Wait until every part says that it is ready, leader, shards and attachments included."""
        last: list[str | None] = ["nothing was asked yet"]

        def ready() -> bool:
            last[0] = self.lacking()
            return last[0] is None

        try:
            wait_until(ready, timeout, "the test cluster to be ready", every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; lacking: {last[0]}") from None

    def lacking(self) -> str | None:
        """Return what keeps it from being whole, in words; None if nothing does."""
        for member in self.etcds.values():
            if not member.ready():
                return f"{member.name} does not serve"
        if not self.postgres.answers():
            return "PostgreSQL does not answer"
        return why_daemons_not_ready(
            {name: service.http for name, service in self.members.items()},
            {name: service.http for name, service in self.workers.items()},
        )

    def fail_over(self) -> Server:
        """Promote the standby: from here on it is this world's PostgreSQL, and there is no other.
        Answers the one that was; whether that one still lives is the nemesis' matter.
        """
        old, new = self.postgres, self.standby
        assert new is not None, "this world's PostgreSQL has no standby"
        standby.promote(new)
        self.postgres, self.standby = new, None
        self.commits.continue_with(new)
        return old

    def down(self) -> None:
        """End everything and take the hosts away. Logs stay."""
        self.supervisor.end()
        release(self.grounds)

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def duplicate_of_member(self, name: str) -> Service:
        """Another `schedd` of this name, on a spare host; not started."""
        etcds = [member.host for member in self.etcds.values()]
        return daemons.member(
            self.spares[0],
            self.work,
            self.logs,
            etcds=etcds,
            dsn=self.dsn,
            ttl=self.ttl,
            name=name,
        )

    def duplicate_of_worker(self, name: str) -> Service:
        """Another `workerd` of this name, on a spare host with a spool of its own; not started."""
        members = [member.host for member in self.members.values()]
        host = self.spares[1]
        return daemons.worker(host, self.work, self.logs, members=members, slots=SLOTS, name=name)

    # ── what it is asked ─────────────────────────────────────────────────────────────────────

    def services(self) -> Iterable[Service]:
        """All of them, in starting order."""
        yield from self.etcds.values()
        yield self.postgres.service
        if self.standby is not None:
            yield self.standby.service
        yield from self.members.values()
        yield from self.workers.values()

    @property
    def endpoints(self) -> list[str]:
        """Where clients call."""
        return [daemons.address(member.host) for member in self.members.values()]

    @property
    def here(self) -> Host:
        """The test itself, as the hosts see it; it has no namespace to enter."""
        address = self.grounds.address(ROOT)
        return Host("root", ROOT, "", address, address)

    def view(self, member: Service) -> dict[str, Any] | None:
        """`GET /api/v1/cluster` of one member."""
        answer = member.get("/api/v1/cluster")
        if answer is None or answer.status != 200:
            return None
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def leader(self, among: Iterable[str] | None = None) -> str | None:
        """The leader's name as the first of these members that knows tells it."""
        for name in among or self.members:
            member = self.members[name]
            if member.alive() and not member.process.paused():
                view = self.view(member)
                if view and view.get("leader"):
                    return str(view["leader"])
        return None

    def owners(self) -> dict[int, str]:
        """Shard → member that owns it, by the database alone."""
        rows = self.postgres.sql(
            "SELECT s.id, t.member FROM shards s JOIN tenures t ON t.id = s.owner"
            " WHERE t.fenced_at IS NULL"
        )
        return {int(shard): str(member) for shard, member in rows}

    def spooled(self, worker: str) -> list[Path]:
        """The batches of results that a worker keeps until they are acknowledged."""
        return list((self.work / worker).glob("*.results"))

    def etcd_leader(self) -> Service | None:
        """The leader of etcd, if one says so."""
        return next((member for member in self.etcds.values() if etcd.leads(member)), None)

    def etcdctl(self, *words: str, check: bool = True) -> str:
        """Run etcdctl against all etcd members that run."""
        running = [m for m in self.etcds.values() if m.alive() and not m.process.paused()]
        return etcd.ctl(running, *words, check=check)

    def await_leader(self, timeout: float, *, other_than: str = "") -> tuple[str, float]:
        """Wait for a leader; answers its name and after how many seconds it was there."""
        began = time.monotonic()

        def elected() -> str:
            found = self.leader(name for name in self.members if name != other_than)
            return found if found and found != other_than else ""

        name: str = wait_until(elected, timeout, "a new leader")
        return name, time.monotonic() - began
