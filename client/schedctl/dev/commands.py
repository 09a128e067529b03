"""`schedctl dev`: the commands. The work is in `schedctl.dev.cluster`."""

import contextlib
import functools
import importlib.util
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from schedctl import contexts
from schedctl.dev import cluster
from schedctl.dev.errors import DevError, MissingProgram, NotReady, NotUp
from schedctl.dev.plan import Requested
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedctl.dev.servers import certificates
from schedctl.dev.servers.processes import DevProcess
from schedctl.failure import Trouble, show
from schedctl.options.global_options import flag, option
from schedctl.output import message

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_DIR = "~/.local/share/schedd/dev"
UP_SECONDS = 60.0
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _reporting(command: Callable[P, R]) -> Callable[P, R]:
    """Print a DevError or an unusable folder as an error, and exit with its code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except DevError as error:
            if error.evidence:
                message(error.evidence)
            trouble = Trouble(error.what, error.status, error.reason, remedy=error.hint)
            click.get_current_context().exit(show(trouble))
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            trouble = Trouble(what, DevError.status, "NO_FOLDER", remedy="name another --dir")
            click.get_current_context().exit(show(trouble))

    return wrapped


_dir_option = option(
    "--dir D",
    f"Folder with the cluster's data and settings.  [default: {DEFAULT_DIR}]",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
)


@click.group(name="dev")
def group() -> None:
    """Run a whole cluster on this machine: etcd, PostgreSQL, members and workers."""


@group.command()
@_dir_option
@option("--members N", "Number of members (schedd).  [default: 3]", type=click.IntRange(min=0))
@option("--workers N", "Number of workers (workerd).  [default: 2]", type=click.IntRange(min=0))
@option(
    "--slots N",
    "Slots of each worker: the number of runs that it executes at once.  [default: 16]",
    type=click.IntRange(min=1),
)
@option(
    "--set TARGET.KEY=VALUE",
    "Setting to change; TARGET is schedd, workerd, the name of one daemon,"
    " postgres or etcd; repeatable.  [default: none]",
    "overrides",
    multiple=True,
)
@option(
    "--postgres DSN",
    "URL of an existing PostgreSQL database to use.  [default: a new PostgreSQL server]",
    "foreign_dsn",
)
@option(
    "--tls",
    "Use TLS, with a certificate for each process. A later `dev up` uses TLS, too.",
    is_flag=True,
    default=None,
)
@flag("--detach", "Return when the cluster is ready, and leave the cluster running.")
@option(
    "--timeout SECONDS",
    "Time limit for the start, in seconds.",
    type=click.FloatRange(min=0, min_open=True),
    default=UP_SECONDS,
    show_default=True,
)
@_reporting
def up(directory: Path | None, detach: bool, timeout: float, **asked: Any) -> None:
    """Start the cluster, or those of its processes that aren't running.

    Sizes and settings are stored: a later `dev up` on the same folder uses them, too. Without
    --detach the command waits for Ctrl-C, and then stops the cluster.
    """
    _check_requirements()
    folder = _folder(directory)
    requested = Requested(**asked)
    if detach:
        try:
            state = cluster.up(folder, requested, timeout=timeout, say=message)
        except NotReady as error:
            left = "started processes are left running: schedctl dev down stops them"
            error.hint = f"{error.hint}; {left}" if error.hint else left
            raise
        _announce(folder, state, own_context=directory is None)
        return
    try:
        for number in _ENDINGS:
            signal.signal(number, signal.default_int_handler)
        state = cluster.up(folder, requested, timeout=timeout, say=message)
        _announce(folder, state, own_context=directory is None)
        message("Ctrl-C stops the cluster")
        with contextlib.suppress(KeyboardInterrupt):
            _watch(folder)
    finally:
        for number in _ENDINGS:  # a second Ctrl-C must not leave processes running
            signal.signal(number, signal.SIG_IGN)
        cluster.down(folder, say=message)


@group.command()
@_dir_option
@_reporting
def down(directory: Path | None) -> None:
    """Stop the cluster. Data and context are kept: `dev up` starts the cluster again."""
    folder = _folder(directory)
    ran = cluster.down(folder, say=message)
    message("stopped" if ran else f"no process runs in {folder.root}")


@group.command()
@_dir_option
@_reporting
def reset(directory: Path | None) -> None:
    """Stop the cluster, and delete its data and its context."""
    folder = _folder(directory)
    state = folder.load()
    cluster.reset(folder, say=message)
    name = _context(folder, own=directory is None)
    known = contexts.load().known.get(name) if state is not None else None
    if known and state and known.endpoints == tuple(_endpoints(state)):  # not of another cluster
        contexts.delete(name)
    message(f"deleted the cluster in {folder.root}")


@group.command("kill-leader")
@_dir_option
@_reporting
def kill_leader(directory: Path | None) -> None:
    """Kill the leader with SIGKILL. The next `dev up` starts the killed member again."""
    part = cluster.leader(_folder(directory))
    _send(part, signal.SIGKILL, "killed")


@group.command("pause-worker")
@click.argument("name")
@_dir_option
@_reporting
def pause_worker(name: str, directory: Path | None) -> None:
    """Pause a worker with SIGSTOP, as if its machine were suspended."""
    _send(cluster.running(_folder(directory), PartKind.WORKER, name), signal.SIGSTOP, "paused")


@group.command("resume-worker")
@click.argument("name")
@_dir_option
@_reporting
def resume_worker(name: str, directory: Path | None) -> None:
    """Resume a paused worker with SIGCONT."""
    _send(cluster.running(_folder(directory), PartKind.WORKER, name), signal.SIGCONT, "resumed")


def _folder(directory: Path | None) -> ClusterFolder:
    return ClusterFolder((directory or Path(DEFAULT_DIR)).expanduser().absolute())


def _send(part: ClusterPart, number: signal.Signals, done: str) -> None:
    if part.process is None or not part.process.send(number):
        raise NotUp(f"the process {part.name} isn't running any more", "start it: schedctl dev up")
    message(f"{done} {part.name}, pid {part.process.pid}")


def _context(folder: ClusterFolder, *, own: bool) -> str:
    return "dev" if own else f"dev-{folder.root.name}"


def _endpoints(state: ClusterState) -> list[str]:
    return [member.address("grpc") for member in state.parts_of_kind(PartKind.MEMBER)]


def _announce(folder: ClusterFolder, state: ClusterState, *, own_context: bool) -> None:
    """Print the addresses on stderr, and on stdout a line for the shell to evaluate, if any."""
    for part in state.parts.values():
        where = (
            part.address("http") if "http" in part.ports else part.address(next(iter(part.ports)))
        )
        message(f"  {part.name:<9} {where}")
    members = state.parts_of_kind(PartKind.MEMBER)
    if not members:
        return
    endpoints = _endpoints(state)
    scheme = "https" if state.tls else "http"
    message(f"dashboard: {scheme}://{members[0].address('http')}/")
    if own_context or state.tls:
        tls = certificates.files_of(folder, certificates.YOU) if state.tls else None
        name = _context(folder, own=own_context)
        contexts.save(name, endpoints, select=own_context, tls=tls)
    if own_context:
        message("current context: dev")
    elif state.tls:
        click.echo(f"export SCHEDCTL_CONTEXT={shlex.quote(name)}")
    else:
        click.echo(f"export SCHEDCTL_ENDPOINTS={','.join(endpoints)}")


def _watch(folder: ClusterFolder) -> None:
    ended: set[DevProcess] = set()
    while (state := folder.load()) is not None and any(True for _ in state.living()):
        for part in state.parts.values():
            if part.process and not part.alive() and part.process not in ended:
                ended.add(part.process)
                message(f"{part.name} ended; log: {folder.log(part.name)}")
        time.sleep(0.5)


def _check_requirements() -> None:
    if not Path("/proc/self/stat").exists():
        raise MissingProgram(
            "/proc isn't mounted: schedctl dev needs it to find its processes",
            "mount it: mount -t proc proc /proc",
        )
    for module in ("psycopg2", "uvicorn", "aiohttp"):
        if importlib.util.find_spec(module) is None:
            raise MissingProgram(
                f"schedctl dev needs the package {module}, which isn't installed",
                "install it: pip install 'schedd[dev]'",
            )
