"""`schedctl dev`: what people type. Everything it does is in `schedctl.dev.cluster`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from schedctl import contexts
from schedctl.dev import cluster
from schedctl.dev.errors import DevError, MissingProgram, NotReady, NotUp
from schedctl.dev.plan import Wishes
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers import certificates
from schedctl.dev.servers.processes import DevProcess
from schedctl.failure import Trouble, show

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_DIR = "~/.local/share/schedd/dev"
UP_SECONDS = 60.0
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _told(command: Callable[P, R]) -> Callable[P, R]:
    """Show a DevError, or a folder that can't be used, as messages; leave with its exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except DevError as error:
            if error.evidence:
                _say(error.evidence)
            trouble = Trouble(error.what, error.status, error.reason, remedy=error.hint)
            click.get_current_context().exit(show(trouble))
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            trouble = Trouble(what, DevError.status, "NO_FOLDER", remedy="name another --dir")
            click.get_current_context().exit(show(trouble))

    return wrapped


_dir_option = click.option(
    "--dir",
    "directory",
    metavar="D",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The cluster's folder.  [default: {DEFAULT_DIR}]",
)


@click.group(name="dev")
def group() -> None:
    """A whole cluster on this machine: etcd, PostgreSQL, members and workers."""


@group.command()
@_dir_option
@click.option("--members", type=click.IntRange(min=0), help="How many schedd.  [default: 3]")
@click.option("--workers", type=click.IntRange(min=0), help="How many workerd.  [default: 2]")
@click.option("--slots", type=click.IntRange(min=1), help="Slots of each worker.  [default: 16]")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TARGET.KEY=VALUE",
    help="A setting; TARGET is schedd, workerd, one daemon's name, postgres or etcd.",
)
@click.option("--postgres", "dsn", metavar="DSN", help="Use this PostgreSQL; start none.")
@click.option("--tls", is_flag=True, default=None, help="Certificates for all; remembered.")
@click.option("--detach", is_flag=True, help="Return when it is up, instead of staying.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=UP_SECONDS,
    show_default=True,
    help="Seconds it may take.",
)
@_told
def up(
    directory: Path | None,
    members: int | None,
    workers: int | None,
    slots: int | None,
    overrides: tuple[str, ...],
    dsn: str | None,
    tls: bool | None,
    detach: bool,
    timeout: float,
) -> None:
    """Start the cluster, or what is missing of it.

    Sizes and settings are remembered: a later `up` on the same folder needs none of them. Stays
    until Ctrl-C and then stops everything, unless --detach is given.
    """
    _require_what_it_takes()
    folder = _folder(directory)
    wishes = Wishes(members, workers, slots, overrides, dsn, tls)
    if detach:
        try:
            state = cluster.up(folder, wishes, timeout=timeout, say=_say)
        except NotReady as error:
            left = "what did start still runs, to be looked at; schedctl dev down stops it"
            error.hint = f"{error.hint}; {left}" if error.hint else left
            raise
        _announce(folder, state, own_context=directory is None)
        return
    try:
        for number in _ENDINGS:
            signal.signal(number, signal.default_int_handler)
        state = cluster.up(folder, wishes, timeout=timeout, say=_say)
        _announce(folder, state, own_context=directory is None)
        _say("Ctrl-C stops it all")
        with contextlib.suppress(KeyboardInterrupt):
            _watch(folder)
    finally:
        for number in _ENDINGS:  # a second Ctrl-C must not leave half of it running
            signal.signal(number, signal.SIG_IGN)
        cluster.down(folder, say=_say)


@group.command()
@_dir_option
@_told
def down(directory: Path | None) -> None:
    """Stop everything; the data stays, and so does its context: `up` goes on with both."""
    folder = _folder(directory)
    ran = cluster.down(folder, say=_say)
    _say("stopped" if ran else f"nothing runs in {folder.root}")


@group.command()
@_dir_option
@_told
def reset(directory: Path | None) -> None:
    """Stop everything, remove its data, and forget its context."""
    folder = _folder(directory)
    state = folder.load()
    cluster.reset(folder, say=_say)
    if state is not None:
        _forget(_context(folder, own=directory is None), state)
    _say(f"nothing is left of the cluster in {folder.root}")


@group.command("kill-leader")
@_dir_option
@_told
def kill_leader(directory: Path | None) -> None:
    """Kill the leading member with SIGKILL. It stays dead until the next `up`."""
    part = cluster.leader(_folder(directory))
    _send(part, signal.SIGKILL, "killed")


@group.command("pause-worker")
@click.argument("name")
@_dir_option
@_told
def pause_worker(name: str, directory: Path | None) -> None:
    """Stop a worker with SIGSTOP, as if its machine slept."""
    _send(cluster.running(_folder(directory), PartKind.WORKER, name), signal.SIGSTOP, "paused")


@group.command("resume-worker")
@click.argument("name")
@_dir_option
@_told
def resume_worker(name: str, directory: Path | None) -> None:
    """Let a paused worker go on."""
    _send(cluster.running(_folder(directory), PartKind.WORKER, name), signal.SIGCONT, "resumed")


def _folder(directory: Path | None) -> ClusterFolder:
    return ClusterFolder((directory or Path(DEFAULT_DIR)).expanduser().absolute())


def _say(text: str) -> None:
    click.echo(text, err=True)


def _send(part: ClusterPart, number: signal.Signals, done: str) -> None:
    if part.process is None or not part.process.send(number):
        raise NotUp(f"{part.name} has ended meanwhile")
    _say(f"{done} {part.name}, pid {part.process.pid}")


def _context(folder: ClusterFolder, *, own: bool) -> str:
    return "dev" if own else f"dev-{folder.root.name}"


def _endpoints(state: ClusterState) -> list[str]:
    return [member.address("grpc") for member in state.of(PartKind.MEMBER)]


def _forget(name: str, state: ClusterState) -> None:
    """The context of a cluster that is no more; another folder's of the same name stays."""
    known = contexts.load().known.get(name)
    if known is not None and known.endpoints == tuple(_endpoints(state)):
        contexts.delete(name)


def _announce(folder: ClusterFolder, state: ClusterState, *, own_context: bool) -> None:
    """Say where everything is. On stdout only the line that a shell may evaluate, if any."""
    for part in state.parts.values():
        where = (
            part.address("http") if "http" in part.ports else part.address(next(iter(part.ports)))
        )
        _say(f"  {part.name:<9} {where}")
    members = state.of(PartKind.MEMBER)
    if not members:
        return
    endpoints = _endpoints(state)
    scheme = "https" if state.tls else "http"
    _say(f"dashboard: {scheme}://{members[0].address('http')}/")
    if own_context or state.tls:
        tls = certificates.files_of(folder, certificates.YOU) if state.tls else None
        name = _context(folder, own=own_context)
        contexts.save(name, endpoints, select=own_context, tls=tls)
    if own_context:
        _say("schedctl now talks to it (context dev)")
    elif state.tls:
        click.echo(f"export SCHEDCTL_CONTEXT={shlex.quote(name)}")
    else:
        click.echo(f"export SCHEDCTL_ENDPOINTS={','.join(endpoints)}")


def _watch(folder: ClusterFolder) -> None:
    """Stay while anything runs; say once of each part that it has ended."""
    gone: set[DevProcess] = set()
    while (state := folder.load()) is not None and any(True for _ in state.living()):
        for part in state.parts.values():
            if part.process and not part.alive() and part.process not in gone:
                gone.add(part.process)
                _say(f"{part.name} ended; its log is {folder.log(part.name)}")
        time.sleep(0.5)


def _require_what_it_takes() -> None:
    if not Path("/proc/self/stat").exists():
        raise MissingProgram(
            "schedctl dev tells processes apart by /proc, and it is not there",
            "on Linux: mount -t proc proc /proc",
        )
    for module in ("psycopg2", "uvicorn", "aiohttp"):
        if importlib.util.find_spec(module) is None:
            raise MissingProgram(
                f"schedctl dev needs {module}, which is not installed",
                "pip install 'schedd[dev]'",
            )
