"""Members with a PostgreSQL that is really restored to an earlier state: the server is killed
and continues from a copy of its files. `tests/acceptance/test_restore.py` shows which runs start
then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schedd.app.recover import recover
from schedd.config.member_config import Config, Etcd, Postgres
from schedd.core.cluster import data_loss_check
from schedd.core.cluster.data_loss_check import Mark
from schedd.core.cluster.membership import MAP
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.store.schema import migrate
from schedkit.errors import Misconfigured
from support.etcd import EtcdCluster
from support.member_process import MemberProcesses
from support.postgres import ScratchServer, back_up, private_postgres, promote, restore
from support.wait import WAIT_TIMEOUT, wait_until_async

TTL = 3


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def private() -> Iterator[ScratchServer]:
    with private_postgres() as server:
        yield server


@dataclass
class World:
    """A database on a server that is restored, and the members on it."""

    server: ScratchServer
    dsn: str
    members: MemberProcesses
    etcd: EtcdClient
    root: str
    backup: Path = field(init=False)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement, over a connection of its own."""
        return self.server.execute(statement, self.dsn)

    def back_up(self, *, marked_ago: str) -> None:
        """Copy the files as of a last mark so long ago. No member runs yet."""
        self.sql(f"UPDATE cluster SET marked_at = clock_timestamp() - interval '{marked_ago}'")
        self.backup = back_up(self.server)

    def restore(self, *, promoted: bool = False) -> None:
        restore(self.server, self.backup, promoted=promoted)

    async def owned(self, after: int = 0) -> None:
        """Wait until all shards are owned by members that live, at epochs above this one."""

        async def owned() -> bool:
            [(count,)] = self.sql(
                "SELECT count(*) FROM shards s JOIN tenures t ON t.id = s.owner"
                f" WHERE t.fenced_at IS NULL AND s.epoch > {after}"
            )
            return bool(count == 256)

        await wait_until_async(owned, WAIT_TIMEOUT, "all shards to be owned")

    def counts(self) -> tuple[int, int]:
        """The greatest epoch, and the term."""
        [counts] = self.sql("SELECT max(epoch), (SELECT term FROM term) FROM shards")
        return counts[0], counts[1]

    async def remembered(self) -> Mark:
        """The mark in etcd."""
        entry = await self.etcd.get(data_loss_check.KEY)
        assert entry is not None
        return data_loss_check.decode(entry.value)

    def audit(self, action: str) -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT actor, reason, after FROM audit WHERE action = '{action}'")


@asynccontextmanager
async def a_world(etcd: EtcdCluster, server: ScratchServer, folder: Path) -> AsyncIterator[World]:
    dsn = server.create_database()
    migrate.upgrade(dsn)
    root = f"recovery-{os.getpid()}-{dsn.rpartition('_')[2]}/"
    async with connect(EtcdAccess(etcd.endpoints), deadline=0.5, root=root) as client:
        with MemberProcesses(etcd.endpoints, dsn, folder, root=root, ttl=TTL) as members:
            yield World(server, dsn, members, client, root)


@pytest.fixture
async def world(etcd: EtcdCluster, private: ScratchServer, tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(etcd, private, tmp_path) as made:
        yield made


async def test_a_database_put_back_under_a_running_member_is_held_in_recovery(
    world: World,
) -> None:
    """P2.9: same address, same timeline; the marks alone tell."""
    world.back_up(marked_ago="1 hour")
    [(mark,)] = world.sql("SELECT marked_at FROM cluster")
    world.members.start("a")
    await world.owned()
    epoch, term = world.counts()
    before = await world.remembered()
    [(incarnation,)] = world.sql(
        "INSERT INTO incarnations VALUES (gen_random_uuid(), 'w', 's', 'h', '1', 1, '{}', '{}',"
        " '{}', now(), NULL) RETURNING id"
    )

    world.restore()
    await world.owned(after=epoch)

    [(began, by, note, lost_until, ended)] = world.sql(
        "SELECT began, paused_by, note, lost_until, ended FROM pauses"
    )
    assert (began, by, ended) == (mark, "schedd", None), "all of the hole is in the pause"
    assert before.at is not None
    assert lost_until == before.at + data_loss_check.DOUBT
    assert "schedctl cluster resume --catch-up-since" in note
    assert world.sql("SELECT paused FROM cluster") == [(True,)]
    assert world.counts()[1] > term
    entries = world.audit("recover")
    assert 1 <= len(entries) <= world.counts()[1] - term, "a term that ends in it has a successor"
    for actor, reason, after in entries:
        assert (actor, json.loads(after)["note"]) == ("schedd", note)
        assert reason.startswith("PostgreSQL lost the data of about 36")
    after_all = await world.remembered()
    assert after_all.at is not None
    assert after_all.at > before.at
    log = world.members.log("a").read_text()
    assert "recovery: PostgreSQL was restored to its state of" in log
    assert str(incarnation) not in log


async def test_a_failover_that_lost_a_short_tail_continues_and_reports_it(world: World) -> None:
    """P2.9: no person is asked, and the audit names what was lost."""
    world.back_up(marked_ago="-1 hour")  # marks far past the clock grow by 2.5 s each
    world.members.start("a")
    await world.owned()
    epoch, term = world.counts()

    world.restore(promoted=True)
    await world.owned(after=epoch)

    assert world.sql("SELECT count(*) FROM pauses") == [(0,)]
    [(actor, reason, _)] = world.audit("lose-tail")
    assert actor == "schedd"
    assert "acknowledged calls of that time are lost" in reason
    assert world.counts()[1] > term

    promote(world.server)  # and one without any loss
    epoch, term = world.counts()
    await world.owned(after=epoch)
    assert world.counts()[1] > term
    assert (len(world.audit("lose-tail")), len(world.audit("recover"))) == (1, 0)


async def test_schedd_recover_holds_a_backup_from_before_a_fail_over_while_no_member_runs(
    world: World, etcd: EtcdCluster
) -> None:
    """P2.9: its timeline is lower than the one that was seen, so members would leave it alone."""
    world.back_up(marked_ago="1 hour")
    promote(world.server)
    world.members.start("a")
    await world.owned()
    epoch, _ = world.counts()
    config = Config(
        postgres=Postgres(dsn=world.dsn), etcd=Etcd(tuple(etcd.endpoints), prefix=world.root)
    )
    with pytest.raises(Misconfigured, match=r"members run \(a\)"):
        await asyncio.to_thread(recover, config)
    world.members["a"].send(signal.SIGTERM)
    await wait_until_async(lambda: not world.members["a"].alive(), WAIT_TIMEOUT, "a to end")

    world.restore()
    [said] = await asyncio.to_thread(recover, config)
    assert said.startswith("in recovery since")
    assert world.sql("SELECT paused FROM cluster") == [(True,)]
    assert await world.etcd.get(MAP) is None
    world.members.start("b")
    await world.owned(after=epoch)
    assert world.sql("SELECT count(*), min(ended) FROM pauses") == [(1, None)]


async def test_schedd_recover_works_without_etcd_and_says_so(private: ScratchServer) -> None:
    """P2.9: then there is nothing else to tell a restore by."""
    dsn = private.create_database()
    migrate.upgrade(dsn)
    config = Config(postgres=Postgres(dsn=dsn), etcd=Etcd(("127.0.0.1:1",)))
    doubt, said = await asyncio.to_thread(recover, config)
    assert doubt.startswith("the database is in recovery, but etcd doesn't answer")
    assert said.startswith("in recovery since")
    assert private.execute("SELECT lost_until IS NOT NULL, ended FROM pauses", dsn) == [
        (True, None)
    ]
