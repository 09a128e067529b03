"""Composes a worker, starts it, and shuts it down.

    lock the spool → kill leftovers → keeper → load spooled results → attach → work
        SIGTERM → drain: no new work, finish, return the rest, deliver results, goodbye

Invariants
- Before the first hello, no process of an earlier worker of this spool is running.
- A worker that shuts down leaves no running job. It leaves no result if a member accepts them, even
  with a full disk. Neither a hanging store nor an executor prevents the shutdown.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from schedkit.net.channel import listening
from schedkit.net.http_limits import HttpServer, protocol_of
from schedkit.objects import open_objects
from schedkit.tasks import guard
from schedkit.ttl_cache import TtlCache
from schedproto.v1 import worker_service_pb2 as pb
from workerd.config import WorkerConfig
from workerd.core.admission import Admission
from workerd.core.cluster_time import JudgingClock
from workerd.core.ids import Address, AssignmentKey, Incarnation
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import Cause
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.result_upload import ResultUpload
from workerd.delivery.spool import HomeCluster, Spool
from workerd.executors import plugins, scratch
from workerd.executors.table import ExecutorTable
from workerd.logs.attempt_log import AttemptLogFolder
from workerd.metrics import WorkerMetrics
from workerd.process.keeper import sweep_leftovers
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.runs.assignments import HeldRuns
from workerd.stream.streams import Attach

# The worker's own HTTP: `/healthz`, `/readyz`, `/metrics`.

BACKLOG = 128
"""Pending connections."""
MOST, MOST_OF_ONE_HOST = 128, 32
"""Connections, in total and from one host. Each caller of health and metrics needs one."""


class HttpListener:
    """A bound socket and its application, served by the worker's event loop."""

    def __init__(
        self,
        address: str,
        metrics: WorkerMetrics,
        collect: Callable[[], object],
        ready: Callable[[], str],
    ) -> None:
        """Bind the address. `collect` updates gauges. `ready` returns why not, or an empty text.
        Raises Misconfigured: the address can't be bound.
        """
        try:
            self._socket = listening(address, BACKLOG)
        except OSError as error:
            raise Misconfigured(
                f"can't listen on {address}: {error}; use a free port, and an address of this"
                " host (listen.http)"
            ) from error

        async def healthz(_: Request) -> Response:
            return PlainTextResponse("ok\n")

        async def readyz(_: Request) -> Response:
            why = ready()
            return PlainTextResponse(f"{why or 'ok'}\n", status_code=503 if why else 200)

        def rendered(_: str) -> bytes:
            collect()
            return generate_latest(metrics.registry)

        scraped = TtlCache(rendered)

        async def series(_: Request) -> Response:
            return Response(scraped.get(CONTENT_TYPE_LATEST), media_type=CONTENT_TYPE_LATEST)

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
        self._server = HttpServer(config)

    @property
    def port(self) -> int:
        number: int = self._socket.getsockname()[1]
        return number

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        except asyncio.CancelledError:
            self._server.stop()
            self._socket.close()
            raise


log = logging.getLogger(__name__)

DELIVER_WITHIN = 10.0
"""Seconds that a drained worker waits for the acknowledgement of its last results."""
_STORE_WITHIN = 6.0
"""Seconds of these for uploads of logs and large results; then results are sent without."""
_KILL_WITHIN = 12.0
"""Seconds for attempts to end after SIGTERM, whatever their `kill_after` is."""
_GONE_WITHIN = 10.0
"""Seconds from the end of the drain to the end of the process, even if something hangs."""
_REAP_WITHIN = 3.0
"""Seconds for killed processes to disappear."""
_COLLECT_AFTER = 10_000
"""Allocated containers after which Python's cycle collector runs. Attempts leave no cycles;
handlers may, and their cycles are found a little later.
"""


class App:
    def __init__(
        self,
        config: WorkerConfig,
        spool: Spool,
        supervisor: ProcessSupervisor,
        points: Mapping[str, EntryPoint],
    ) -> None:
        """Prepare everything. Blocks briefly. Raises Misconfigured: the address can't be bound, a
        TLS file can't be read, or an import failed: a module of handlers, a plug-in executor or the
        result store.
        """
        if config.tls is not None:
            config.tls.read()
        self._config = config
        self._spool = spool
        self._supervisor = supervisor
        self._metrics = WorkerMetrics()
        table = ExecutorTable(config, self._supervisor, spool.scratch, points, self._metrics)
        identity = _identity(config, spool, table)
        self._admission = Admission(config.slots, Incarnation(identity.incarnation))
        self._trust = WorkerLeaseTrust()
        limit = config.spool_mib << 20
        self._sender = ResultSender(spool, self._acknowledged, limit=limit)
        self._sender.load()
        kept = AttemptLogFolder(spool.upload_directory, config.results.spool_mib << 20)
        objects = open_objects(config.results.url, config.results.options)
        self._upload = ResultUpload(objects, kept, config.results, self._metrics)
        self._work = HeldRuns(
            config.name,
            self._admission,
            self._trust,
            JudgingClock(),
            table.by_action,
            self._sender,
            self._upload,
            self._metrics,
        )
        self._attach = Attach(
            identity,
            [Address(each) for each in config.endpoints],
            config.tls,
            self._work,
            HomeCluster(spool.directory),
        )
        self._work.on_change = self._attach.redeal
        self._work.attempts.on_progress = self._attach.progress
        self._work.hindered = lambda: self._supervisor.refusal_reason or table.loops.refusal_reason
        self._attach.on_trust = self._trusted_until
        self._attach.fill_heartbeat = table.loops.fill
        self._listener = HttpListener(
            config.listen.http, self._metrics, self._collect, self._unready
        )
        self._table = table

    async def run(self, daemon: Daemon) -> None:
        """Run until a signal requests the drain, then drain and return."""
        serving = f"worker {self._config.name}: {self._config.slots} slots"
        loops: dict[str, Callable[[], Awaitable[object]]] = {
            "spool": self._sender.keep_spooling,
            "resend": self._sender.keep_sending,
            "work": self._work.run,
            "attach": self._attach.run,
            "http": self._listener.serve,
            "handler loops": self._table.loops.watch,
            "keeper": self._supervisor.keep_keeper,
            "processes": self._supervisor.watch,
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
        self._work.drain_permanently()
        self._attach.announce()
        timeout = self._config.drain_timeout.total_seconds()
        if not await _within(timeout, self._work.idle()):
            log.warning(
                "drain timed out after drain_timeout: unfinished runs are returned to the members",
                extra={"run_ids": listed(self._work.runs)},
            )
            self._work.stop_all(Cause.DRAIN)
            if not await _within(_KILL_WITHIN, self._work.idle()):
                self._work.stop_all(Cause.DRAIN, kill=True)
                await _within(_REAP_WITHIN, self._work.idle())
        idle = await _within(0.0, self._work.idle())
        self._upload.hurry(_STORE_WITHIN)
        self._sender.shut_down()
        if not await _within(DELIVER_WITHIN, self._sender.delivered()):
            self._log_undelivered()
        elif not idle:
            # The handler ends with the process. Without a goodbye no other worker starts its run
            # until the lease has expired.
            log.warning(
                "a handler is still running: the worker ends without signing off, and other workers"
                " start its run only after the lease expires"
            )
        else:
            await _within(2.0, self._attach.goodbye())

    def _log_undelivered(self) -> None:
        on_disk, lost = self._sender.count_remaining
        if on_disk:
            log.warning("%d results stay in the spool until the worker starts again", on_disk)
        if lost:
            why = self._sender.refusal_reason or "the disk is too slow"
            log.error("%d results lost: no member accepted them, and %s", lost, why)

    def _acknowledged(self, keys: Sequence[AssignmentKey], verdict: str) -> None:
        self._metrics.answered(verdict).inc(len(keys))
        self._work.acknowledged(keys)

    def _trusted_until(self, until: float) -> None:
        self._supervisor.lease.write(until)
        self._metrics.lease_margin.renewed(until, self._trust.ttl)

    def _collect(self) -> None:
        metrics, admission = self._metrics, self._admission
        metrics.slots.set(self._config.slots)
        metrics.free.set(admission.free)
        metrics.used.set(admission.used)
        metrics.spool.set(len(self._sender))
        metrics.members.set(self._attach.attached)
        metrics.trusted.set(self._trust.holds(boottime()))

    def _unready(self) -> str:
        if not self._attach.attached:
            return "the worker is connected to no member"
        if not self._attach.trusted():
            return "the worker's lease may have expired"
        return "draining" if self._admission.draining else self._work.refusal_reason


async def serve(config: WorkerConfig, daemon: Daemon) -> None:
    warn_of_ignored_proxies(config.egress)
    spool = Spool(config.spool)
    try:
        killed = sweep_leftovers(spool.directory)
        if killed:
            log.warning("killed %d leftover processes of an earlier worker", killed)
        await asyncio.to_thread(scratch.clear, spool.scratch)
        points = plugins.installed_plugins()
        inside = bool(config.handlers or points)
        supervisor = ProcessSupervisor(spool.directory, wanted=config.cgroups, handlers=inside)
        with contextlib.closing(supervisor):
            app = App(config, spool, supervisor, points)
            # All objects that exist now, handlers' modules included, aren't collected any more.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_COLLECT_AFTER)
            await app.run(daemon)
    finally:
        spool.close()


def _identity(config: WorkerConfig, spool: Spool, table: ExecutorTable) -> pb.Hello:
    identity = pb.Hello(
        worker=config.name,
        incarnation=str(uuid.uuid4()),
        spool_id=spool.id,
        version=metadata.version("schedd"),
        host=socket.gethostname(),
        slots=config.slots,
        labels=config.labels,
        handlers=table.handlers,
        actions=table.by_action,
    )
    identity.started_at.FromDatetime(utcnow())
    return identity


def _gone_within(seconds: float) -> None:
    """End this process after so many seconds: foreign code may block its loop or its exit. All
    results are delivered by now, and the keeper ends what is still running.
    """

    def leave() -> None:
        log.error("shutdown timed out: ending the process")
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
