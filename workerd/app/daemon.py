"""Wires a worker together, and leads it through its life.

    lock the spool → kill leftovers → keeper → load what is spooled → attach → work
        SIGTERM → draining: nothing new, finish, hand back the rest, settle, goodbye

Invariants
- Before the first hello nothing of an earlier process of this spool runs any more.
- A worker that ends in good order leaves no running job, and, when a member was there to take
  them, no result, whatever its disk takes. Neither a store that hangs nor an executor keeps it from
  ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import metadata
from importlib.metadata import EntryPoint

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schedkit.clock import boottime, utcnow
from schedkit.daemon.logs import listed
from schedkit.daemon.service import OK, Daemon, answer_reloads
from schedkit.egress.policy import warn_of_ignored_proxies
from schedkit.errors import Misconfigured
from schedkit.net.http_limits import protocol_of
from schedkit.net.listening import listening
from schedkit.objects import open_objects
from schedkit.tasks import guard
from schedkit.ttl_cache import Momentary
from workerd.config import WorkerConfig
from workerd.core.admission import Admission
from workerd.core.cluster_time import JudgingClock
from workerd.core.ids import Address, AssignmentKey
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import Cause
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.result_upload import ResultUpload
from workerd.delivery.spool import Spool
from workerd.executors import plugins, scratch
from workerd.executors.table import ExecutorTable, executors
from workerd.home_cluster import HomeCluster
from workerd.identity import WorkerIdentity
from workerd.logs.attempt_log import AttemptLogFolder
from workerd.metrics import WorkerMetrics
from workerd.process.keeper import sweep_leftovers
from workerd.process.process_supervisor import Sessions
from workerd.runs.assignments import HeldRuns
from workerd.stream.streams import Attach

# The worker's own HTTP: `/healthz`, `/readyz`, `/metrics`.

BACKLOG = 128
"""Connections that wait to be accepted."""
MOST, MOST_OF_ONE_HOST = 128, 32
"""Connections to it: who asks for health and metrics needs one."""


class HttpListener:
    """A bound socket and the application behind it, served by the worker's own event loop."""

    def __init__(
        self,
        address: str,
        metrics: WorkerMetrics,
        collect: Callable[[], object],
        ready: Callable[[], str],
    ) -> None:
        """`collect` brings gauges up to date; `ready` says why not, or nothing when it is.

        Raises:
            Misconfigured: the address can't be bound.
        """
        try:
            self._socket = listening(address, BACKLOG)
        except OSError as error:
            raise Misconfigured(f"can't listen on {address}: {error}") from error

        async def healthz(_: Request) -> Response:
            return PlainTextResponse("ok\n")

        async def readyz(_: Request) -> Response:
            why = ready()
            return PlainTextResponse(f"{why or 'ok'}\n", status_code=503 if why else 200)

        def rendered(_: str) -> bytes:
            collect()
            return generate_latest(metrics.registry)

        scraped = Momentary(rendered)

        async def series(_: Request) -> Response:
            return Response(scraped.of(CONTENT_TYPE_LATEST), media_type=CONTENT_TYPE_LATEST)

        routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", series)]
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            http=protocol_of(MOST, MOST_OF_ONE_HOST),
            ws="none",
        )
        self._server = _Quiet(config)

    @property
    def port(self) -> int:
        """Where it listens."""
        number: int = self._socket.getsockname()[1]
        return number

    async def serve(self) -> None:
        """Until cancelled."""
        try:
            await self._server.serve(sockets=[self._socket])
        except asyncio.CancelledError:
            self._server.should_exit = True
            self._socket.close()
            raise


class _Quiet(uvicorn.Server):
    """Signals are the daemon's, not the listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


log = logging.getLogger(__name__)

SETTLE_WITHIN = 10.0
"""Seconds that a worker which has drained waits for its last results to be stored."""
_STORE_WITHIN = 6.0
"""Seconds of these that logs and large results have to be stored; then ends are told without."""
_KILL_WITHIN = 12.0
"""Seconds that attempts have to end when asked, whatever their `kill_after`; by default 10 s."""
_GONE_WITHIN = 10.0
"""Seconds from the end of the drain to that of the process, whatever doesn't close or return."""
_REAP_WITHIN = 3.0
"""Seconds for what was killed to be gone."""
_COLLECT_AFTER = 10_000
"""Containers made and not let go of until Python looks for cycles among them. An attempt leaves no
cycles; a handler's work may, and they are found a little later.
"""


class App:
    """One worker process."""

    def __init__(
        self,
        config: WorkerConfig,
        spool: Spool,
        sessions: Sessions,
        points: Mapping[str, EntryPoint],
    ) -> None:
        """Prepare everything; blocks for a moment.

        Raises:
            Misconfigured: the address can't be bound, a TLS file can't be read, or a handler's
                module, an executor of others or the result store can't be imported.
        """
        if config.tls is not None:
            config.tls.read()
        self._config = config
        self._spool = spool
        self._sessions = sessions
        self._metrics = WorkerMetrics()
        table = executors(config, self._sessions, spool.scratch, points, self._metrics)
        identity = _identity(config, spool, table)
        self._admission = Admission(config.slots, identity.incarnation)
        self._trust = WorkerLeaseTrust()
        clock = JudgingClock()
        limit = config.spool_mib << 20
        self._courier = ResultSender(spool, self._settled, limit=limit)
        self._courier.load()
        kept = AttemptLogFolder(spool.kept, config.results.spool_mib << 20)
        objects = open_objects(config.results.url, config.results.options)
        self._keeping = ResultUpload(objects, kept, config.results, self._metrics)
        self._work = HeldRuns(
            config.name,
            self._admission,
            self._trust,
            clock,
            table.by_action,
            self._courier,
            self._keeping,
            self._metrics,
        )
        self._attach = Attach(
            identity,
            [Address(each) for each in config.endpoints],
            config.tls,
            self._admission,
            self._trust,
            clock,
            self._work,
            self._courier,
            HomeCluster(spool.directory).refusal,
        )
        self._work.on_change = self._attach.redeal
        self._work.on_progress = self._attach.progress
        self._work.hindered = lambda: self._sessions.refuses or table.loops.refuses
        self._attach.on_trust = self._trusted_until
        self._attach.fill_heartbeat = table.loops.fill
        self._listener = HttpListener(
            config.listen.http, self._metrics, self._collect, self._unready
        )
        self._table = table

    async def run(self, daemon: Daemon) -> None:
        """Live until told to drain, and then until drained."""
        serving = f"worker {self._config.name}: {self._config.slots} slots"
        loops: dict[str, Callable[[], Awaitable[object]]] = {
            "spool": self._courier.keep_spooling,
            "resend": self._courier.keep_sending,
            "work": self._work.run,
            "attach": self._attach.run,
            "http": self._listener.serve,
            "handler loops": self._table.loops.watch,
            "keeper": self._sessions.keep_keeper,
            "sessions": self._sessions.watch,
            "reload": lambda: answer_reloads(daemon, serving),
        }
        async with self._table, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(guard(loop, name), name=name) for name, loop in loops.items()
            ]
            log.info("executors: %s", ", ".join(self._table.by_action))
            log.info("worker %s listens on port %d", self._config.name, self._listener.port)
            daemon.ready(serving)
            await daemon.draining.wait()
            await self._drain(daemon)
            _gone_within(_GONE_WITHIN)
            for task in tasks:
                task.cancel()

    async def _drain(self, daemon: Daemon) -> None:
        daemon.status("draining")
        self._work.leave()
        self._attach.announce()
        patience = self._config.drain_timeout.total_seconds()
        if not await _within(patience, self._work.idle()):
            log.warning(
                "drain_timeout is over: handing back what still runs",
                extra={"run_ids": listed(self._work.runs)},
            )
            self._work.stop_all(Cause.DRAIN)
            if not await _within(_KILL_WITHIN, self._work.idle()):
                self._work.stop_all(Cause.DRAIN, kill=True)
                await _within(_REAP_WITHIN, self._work.idle())
        idle = await _within(0.0, self._work.idle())
        self._keeping.hurry(_STORE_WITHIN)
        self._courier.leave()
        if not await _within(SETTLE_WITHIN, self._courier.settled()):
            self._tell_what_stays()
        elif not idle:
            # Its end is the process's; until the lease has run out nobody else begins it.
            log.warning("a handler doesn't end; this worker ends without a goodbye")
        else:
            await _within(2.0, self._attach.goodbye())

    def _tell_what_stays(self) -> None:
        on_disk, lost = self._courier.left
        if on_disk:
            log.warning("%d results stay in the spool for the next start", on_disk)
        if lost:
            why = self._courier.refuses or "its disk was too slow"
            log.error("%d results are lost: no member took them, and %s", lost, why)

    def _settled(self, key: AssignmentKey, verdict: str) -> None:
        self._metrics.answered(verdict).inc()
        self._work.acknowledged(key)

    def _trusted_until(self, until: float) -> None:
        self._sessions.lease.tell(until)
        self._metrics.slack.renewed(until, self._trust.ttl)

    def _collect(self) -> None:
        metrics, admission = self._metrics, self._admission
        metrics.slots.set(self._config.slots)
        metrics.free.set(admission.free)
        metrics.used.set(admission.used)
        metrics.spool.set(len(self._courier))
        metrics.members.set(self._attach.attached)
        metrics.trusted.set(self._trust.holds(boottime()))

    def _unready(self) -> str:
        if not self._attach.attached:
            return "attached to no member"
        if not self._attach.trusted():
            return "its lease isn't known to live"
        return "draining" if self._admission.draining else self._work.refuses


async def serve(config: WorkerConfig, daemon: Daemon) -> None:
    """A worker's whole life, for `run_daemon`."""
    warn_of_ignored_proxies(config.egress)
    spool = Spool(config.spool)
    try:
        killed = sweep_leftovers(spool.directory)
        if killed:
            log.warning("killed %d processes that an earlier worker left", killed)
        await asyncio.to_thread(scratch.clear, spool.scratch)
        points = plugins.found()
        inside = bool(config.handlers or points)
        sessions = Sessions(spool.directory, wanted=config.cgroups, handlers=inside)
        with contextlib.closing(sessions):
            app = App(config, spool, sessions, points)
            _spare_the_collector()
            await app.run(daemon)
    finally:
        spool.close()


def _identity(config: WorkerConfig, spool: Spool, table: ExecutorTable) -> WorkerIdentity:
    return WorkerIdentity(
        worker=config.name,
        spool_id=spool.id,
        version=metadata.version("schedd"),
        host=socket.gethostname(),
        slots=config.slots,
        labels=config.labels,
        handlers=table.handlers,
        actions=[*table.by_action],
        started_at=utcnow(),
    )


def _spare_the_collector() -> None:
    """What is there by now, the handlers' modules too, stays until the end: it is never looked
    through again. And what attempts hold while they run is looked through less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def _gone_within(seconds: float) -> None:
    """End this process then, if it is still there: another's code may block its loop or its exit.
    All is told by now; what would be left running is the keeper's to end.
    """

    def leave() -> None:
        log.error("what doesn't close is left as it is")
        logging.shutdown()
        os._exit(OK)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


async def _within(seconds: float, waiting: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True
