"""A member's HTTP face on a real database, without the member: a view of the cluster as a value.

    async with served(dsn) as web:
        answer = await web.get("/api/v1/jobs")

Store, clock, streams and wake-ups are the real ones; only the members, workers and the leader are
set here (`web.cluster`), because a test of pages chooses them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from starlette.applications import Starlette

from schedd.api.auth.access_tokens import create_token
from schedd.api.auth.authentication import Authentication
from schedd.api.services import Caller, Services
from schedd.core.auth.rights import ANONYMOUS
from schedd.core.checkup.facts import EtcdFacts, Facts, FailedRead
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.core.ids import SHARDS, Epoch, IncarnationId, ShardId, TenureId, Term, new_id
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.results.log_followers import LogFollowers
from schedd.results.objects import StoredObjects
from schedd.results.progress import MemberProgress
from schedd.rpc.peers.peers import Peers
from schedd.rpc.peers.wake_ups import WakeUpSender
from schedd.rpc.workers.relay import AskedRefusals
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedd.telemetry.recorder import Telemetry
from schedd.watch.change_bus import Watchers
from schedd.watch.subscriptions import Subscriptions
from schedd.web.app import build
from schedd.web.guard import STRAIGHT, Reach
from schedd.web.server import bound
from schedd.web.streams import BEAT
from schedkit.clock import utcnow
from schedkit.objects.files import Files
from schedproto.v1 import auth_service_pb2 as auth


def member(name: str, **changes: Any) -> MemberView:
    """A live member of this name."""
    plain = MemberView(
        name=name,
        tenure=TenureId(new_id()),
        grpc=f"{name}:7420",
        http=f"{name}:7421",
        weight=100,
        version="0.1",
        tzdata="",
        draining=False,
    )
    return replace(plain, **changes)


@dataclass
class StubCluster:
    """The `Observer` that a test describes: by default one member that leads and owns all."""

    members: list[MemberView] = field(default_factory=lambda: [member("m1")])
    leader: str | None = "m1"
    term: int = 7
    has_trust: bool = True
    duplicate: str = ""
    workers: set[IncarnationId] = field(default_factory=set)

    @property
    def tenure(self) -> TenureId | None:
        return self.members[0].tenure if self.members else None

    def view(self) -> ClusterView:
        leader = next((m.tenure for m in self.members if m.name == self.leader), None)
        assigned = {ShardId(at): self.tenure for at in range(SHARDS)} if self.tenure else {}
        return ClusterView(
            tuple(self.members),
            leader,
            Term(self.term),
            assigned,
            frozenset(self.workers),
            revision=1,
        )

    def owned(self) -> dict[ShardId, Epoch]:
        return {ShardId(at): Epoch(1) for at in range(SHARDS)} if self.has_trust else {}

    def trusted(self) -> bool:
        return self.has_trust


class NoSuccession:
    """No member that could become the leader."""

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        return False

    async def follows(self, term: Term) -> ClusterView:
        raise AssertionError("no member was asked")


class NoCheckup:
    """A look at nothing: all is away."""

    async def facts(self) -> Facts:
        return Facts(utcnow(), "0.1", EMPTY_VIEW, EtcdFacts(), FailedRead("it is away"))


@dataclass
class Answer:
    """The response."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Web:
    """The served face, and what it stands on."""

    url: str
    session: aiohttp.ClientSession
    cluster: StubCluster
    store: Stores
    services: Services
    telemetry: Telemetry
    app: Starlette
    server: asyncio.Task[Any]
    reasons: list[str]

    async def ask(self, verb: str, path: str, **options: Any) -> Answer:
        async with self.session.request(verb, self.url + path, **options) as response:
            return Answer(response.status, response.headers, await response.text())

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.ask("POST", path, json=body, **options)

    @asynccontextmanager
    async def events(
        self, path: str, *, beats: bool = False, **options: Any
    ) -> AsyncIterator[AsyncIterator[Sent]]:
        """The events of a stream as they come; with `beats` also those."""
        async with self.session.get(self.url + path, **options) as response:
            assert response.status == 200, await response.text()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response.content, beats)


async def token(web: Web, role: int, *namespaces: str) -> tuple[str, str]:
    """The id and text of a new access token for these namespaces."""
    asked = auth.CreateTokenRequest(
        name="alice", role=auth.Role.ValueType(role), namespaces=namespaces
    )
    made = await create_token(web.services, Caller(ANONYMOUS, "test"), asked)
    return made.token.token_id, made.secret


def bearer(text: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"authorization": f"Bearer {text}"}


@dataclass
class Sent:
    """An event as it was received."""

    data: str
    name: str
    id: str


async def _events(content: aiohttp.StreamReader, beats: bool) -> AsyncIterator[Sent]:
    fields: dict[str, list[str]] = {}
    async for line in content:
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            fields.setdefault(name, []).append(value)
        else:
            if "data" in fields:
                name, id_ = fields.get("event", [""])[0], fields.get("id", [""])[0]
                if beats or name != BEAT:
                    yield Sent("\n".join(fields["data"]), name, id_)
            fields = {}


@asynccontextmanager
async def served(
    dsn: str, *, demanded: bool = False, reach: Reach = STRAIGHT
) -> AsyncIterator[Web]:
    """A member's HTTP face over this migrated database."""
    store = Stores(Database(dsn, lanes=1))
    cluster, telemetry, reasons = StubCluster(), Telemetry(), []
    clock = DatabaseClock(store.membership.probe)
    await clock.step()
    lines, peers = WorkerRegistry(clock, telemetry.emit), Peers(cluster, None)
    services = Services(
        store=store.users,
        calendars=store.calendars,
        pools=store.pools,
        pauses=store.pauses,
        backfills=store.backfills,
        dead_letters=store.dead_letters,
        chains=store.chains,
        membership=store.membership,
        worker_store=store.workers,
        access_tokens=store.access_tokens,
        authentication=Authentication(store.access_tokens, clock, demanded=demanded),
        clock=clock,
        wake_ups=WakeUpSender(cluster, peers),
        lines=lines,
        refusals=AskedRefusals(cluster, lines, peers),
        changes=(watchers := Watchers()),
        feed=Subscriptions(store.changes, watchers.ears),
        log_followers=LogFollowers(lines),
        advances=MemberProgress(),
        cluster=cluster,
        succession=NoSuccession(),
        checkup=NoCheckup(),
        objects=StoredObjects(Files(Path("/nonexistent"))),
        version="0.1",
        cluster_id="test",
    )
    app = build(services, telemetry, lambda: reasons, reach=reach)
    try:
        async with (
            bound("127.0.0.1:0") as http,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
            asyncio.TaskGroup() as group,
        ):
            server = group.create_task(http.serve(app), name="http")
            loops = [
                group.create_task(each.run()) for each in services.authentication.readers.loops
            ]
            yield Web(
                url=f"http://{http.address}",
                session=session,
                cluster=cluster,
                store=store,
                services=services,
                telemetry=telemetry,
                app=app,
                server=server,
                reasons=reasons,
            )
            for task in (server, *loops):
                task.cancel()
    finally:
        store.close()
