"""The demo from its first line to its last.

    up → apply → watch, until a timeout or Ctrl-C → wait for due runs → check → down

The first Ctrl-C ends the watching and shows the verdict. The second ends the demo at once.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from schedclient import ApiError, Client, Job, NotFound, Run
from schedproto.v1 import job_pb2
from showcase.cluster import HERE, MEMBERS, WORKERS, Addresses, Cluster, CommandFailed, schedctl
from showcase.receiver import Receiver, receiver
from showcase.screen import Screen
from showcase.verdict import Expected, Row, judge
from showcase.watch import Watch, all_ended, due_instants, runs_seen

END_WITHIN = 30.0
"""Seconds for runs to end after the last one was due."""
ONCE = "welcome"
"""The one-shot job. The other jobs are in the manifests."""
INTERRUPTED = 130
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the demo. Return its exit code: 0 without faults, otherwise 1 (130 when interrupted)."""
    options, screen, code = _options(), Screen(), 1
    try:
        code = asyncio.run(_demo(options, screen))
    except* (ApiError, CommandFailed) as errors:
        for error in _each(errors):
            screen.say(f"✗ {error}", "red")
    except* asyncio.CancelledError:
        screen.say("broken off", "yellow")
        code = INTERRUPTED
    return code


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _each(error) if isinstance(error, BaseExceptionGroup) else (error,)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/demo/run", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="end after S seconds (default: at Ctrl-C)"
    )
    parser.add_argument(
        "--dir",
        type=lambda text: Path(text).absolute(),
        metavar="D",
        help="folder of the cluster; it is kept (default: a temporary folder)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    return parser.parse_args()


async def _demo(options: argparse.Namespace, screen: Screen) -> int:
    with _ending() as ending:
        folder = options.dir or Path(tempfile.mkdtemp(prefix="schedd-demo-"))
        cluster = Cluster(folder, ours=options.dir is None and not options.keep)
        async with _running(cluster, options, screen) as addresses:
            with receiver() as arrivals:
                rows = await _show(addresses, arrivals, options, screen, ending)
            good = not any(row.faults for row in rows)
            screen.summary(rows)
            screen.faults(rows)
            screen.say("")
            screen.dashboard(f"{addresses.dashboard}/")
        if good:
            screen.say("✓ every due run ran once, on time, and ended as expected", "green")
        else:
            screen.say("✗ some runs were wrong: see the list above", "red")
        return 0 if good else 1


@dataclass(slots=True)
class Ending:
    """A request to end: Ctrl-C, or an equivalent signal."""

    asked: asyncio.Event
    gently: bool = False
    """True: the first request ends only the watching. False: the request cancels the demo."""


@contextmanager
def _ending() -> Iterator[Ending]:
    loop, demo, ending = asyncio.get_running_loop(), asyncio.current_task(), Ending(asyncio.Event())

    def asked() -> None:
        if demo is not None and (ending.asked.is_set() or not ending.gently):
            demo.cancel()
        ending.asked.set()

    for number in _ENDINGS:
        loop.add_signal_handler(number, asked)
    try:
        yield ending
    finally:
        for number in _ENDINGS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _running(
    cluster: Cluster, options: argparse.Namespace, screen: Screen
) -> AsyncIterator[Addresses]:
    screen.say(f"starting etcd, PostgreSQL, {MEMBERS} schedd and {WORKERS} workerd …")
    began = time.monotonic()
    kept = False
    try:
        addresses = await cluster.up()
        screen.say(f"started in {time.monotonic() - began:.1f} s; data in {cluster.folder}")
        screen.dashboard(f"{addresses.dashboard}/")
        yield addresses
        kept = options.keep
    finally:
        if kept:
            cluster.keep()
            screen.say(f"cluster still running; to stop: schedctl dev down --dir {cluster.folder}")
        else:
            screen.say("stopping …", "dim")
            await asyncio.to_thread(cluster.down)
            if options.dir is None:
                shutil.rmtree(cluster.folder, ignore_errors=True)


async def _show(
    addresses: Addresses,
    arrivals: Receiver,
    options: argparse.Namespace,
    screen: Screen,
    ending: Ending,
) -> list[Row]:
    async with Client(addresses.endpoints) as client:
        names = [*_names(), ONCE]
        if options.dir is not None:
            await _forget(client, names)
        await _apply(addresses, {"RECEIVER": arrivals.url})
        jobs = [await client.jobs.get(name) for name in names]
        screen.jobs(jobs)
        watch = Watch(client, screen.run)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch.follow(jobs), name="watch")
            ending.gently = True
            await _time_is_over(options.seconds, ending.asked)
            until = watch.until = await _between_instants()
            rows = await _verdicts(client, jobs, until, arrivals)
            watching.cancel()
        return rows


async def _verdicts(
    client: Client, jobs: Sequence[Job], until: datetime, arrivals: Receiver
) -> list[Row]:
    async def verdict(job: Job) -> Row:
        expected = _expected(job, await due_instants(client, job, until))
        try:
            async with asyncio.timeout(END_WITHIN):
                await all_ended(client, job, expected)
        except TimeoutError:
            pass  # the verdict names what hasn't ended
        await client.jobs.pause(job.job_id, "the demo has ended")
        runs, seen = await runs_seen(client, job, until)
        row = judge(expected, seen)
        return _arrived(row, runs, arrivals) if job.name == "orders" else row

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(verdict(job), name=f"verdict {job.name}") for job in jobs]
    return [task.result() for task in tasks]


def _expected(job: Job, due: tuple[datetime, ...]) -> Expected:
    assert isinstance(job.message, job_pb2.Job)
    attempts = job.message.retry.max_attempts or 4
    return Expected(job.name, due, job.labels.get("ends") == "dead-letter", attempts)


def _arrived(row: Row, runs: Sequence[Run], arrivals: Receiver) -> Row:
    """Add a fault for each successful run whose request never arrived."""
    lost = [run.run_id for run in runs if run.succeeded and not arrivals.arrived[run.run_id]]
    faults = [f"run {run_id} succeeded, but its HTTP request didn't arrive" for run_id in lost]
    return replace(row, faults=(*row.faults, *faults))


async def _time_is_over(seconds: float | None, asked: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await asked.wait()
    except TimeoutError:
        return


async def _between_instants() -> datetime:
    """Wait for the middle of a second and return that time: all schedules fire at whole seconds."""
    await asyncio.sleep((0.5 - time.time()) % 1.0)
    return datetime.now(UTC)


# ---- jobs ----


def _manifests() -> list[Path]:
    return sorted(HERE.glob("*.yaml"))


def _names() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in _manifests()]
    return [job["name"] for text in texts for job in yaml.load_all(text, yaml.BaseLoader)]


async def _apply(addresses: Addresses, values: Mapping[str, str]) -> None:
    """Apply the manifests, and create the one-shot job."""
    env = {"SCHEDCTL_ENDPOINTS": ",".join(addresses.endpoints)}
    with tempfile.TemporaryDirectory(prefix="schedd-demo-jobs-") as folder:
        _fill_in(Path(folder), {"DASHBOARD": addresses.dashboard, "FOLDER": str(HERE), **values})
        await schedctl("apply", "-f", folder, env=env)
    words = ("sh", "-c", "echo welcome to schedd")
    await schedctl("job", "create", ONCE, "--at", "+5s", "--", *words, env=env)


def _fill_in(folder: Path, values: Mapping[str, str]) -> None:
    """Copy the manifests, with `${DASHBOARD}` and similar variables replaced. Others stay."""
    for path in _manifests():
        text = path.read_text(encoding="utf-8")
        filled = re.sub(r"\$\{(\w+)\}", lambda word: values.get(word[1], word[0]), text)
        (folder / path.name).write_text(filled, encoding="utf-8")


async def _forget(client: Client, names: Sequence[str]) -> None:
    """Delete the jobs of an earlier demo in the same folder."""
    for name in names:
        try:
            await client.jobs.delete(name)
        except NotFound:
            continue
