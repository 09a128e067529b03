"""The command `workerd`: settings, then the daemon."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from schedkit import failpoints
from schedkit.config import loader as settings
from schedkit.daemon import logs
from schedkit.daemon.reload import Reload
from schedkit.daemon.service import MISCONFIGURED, OK, run_daemon
from schedkit.errors import Misconfigured, NotNow
from schedkit.text.streams import put_out

if TYPE_CHECKING:
    from workerd.config import WorkerConfig

_NEEDED = ("aiohttp", "prometheus_client", "starlette", "uvicorn")
Judging = Callable[["WorkerConfig"], Iterator[settings.ConfigProblem]]
"""Checks beyond the values: modules of handlers, the spool's location."""
DEFAULT_FILE = Path("/etc/schedd/workerd.toml")
_OPTIONS = {
    "--config FILE": f"TOML file with settings (default: {DEFAULT_FILE})",
    "--check-config": "check and print the settings, then exit",
    "--name NAME": "worker name, unique in the cluster (default: the host's name)",
    "--endpoints HOST:PORT,…": "gRPC addresses of members to connect to first (required here or in"
    " the file)",
    "--slots N": "maximum number of runs at once (default: 16)",
    "--spool DIR": "directory of the spool, which keeps results until a member accepts them"
    " (required here or in the file)",
    "--handlers MODULE,…": "Python modules to import, which register handlers (default: none)",
    "--listen-http HOST:PORT": "address of health and metrics (default: 127.0.0.1:7422)",
    "--drain-timeout DURATION": "time for running jobs to finish after SIGTERM (default: 30s)",
    "--log-level LEVEL": "debug, info, warning or error (default: info)",
}
"""Options of the command: flag and value, and help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until a signal ends it. Return the exit code."""
    given = _parser().parse_args(arguments)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"workerd: packages not installed: {', '.join(missing)}\n"
            "install the extra `worker`: pip install 'schedd[worker]'\n"
        )
        return MISCONFIGURED
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    # A job with `user:` is started by fork, not by vfork. gRPC's fork handlers would run in the
    # child between fork and exec, and crash it occasionally.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from workerd.config import WorkerConfig

    flags = {
        name.replace("listen_", "listen."): value
        for name, value in vars(given).items()
        if name not in ("config", "check_config")
    }
    file = given.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)

    def read(judged: Judging) -> WorkerConfig:
        return settings.load(
            WorkerConfig,
            file=file and Path(file),
            environ=os.environ,
            prefix="WORKERD",
            flags=flags,
            also=lambda found: [*found.credentials(), *judged(found)],
        )

    try:
        # Without --check-config handlers are imported after the helper processes were forked.
        config = read(_as_started if given.check_config else WorkerConfig.unmade)
    except NotNow as error:
        sys.stderr.write(f"{error}\n")
        return NotNow.EXIT_CODE
    except Misconfigured as error:
        sys.stderr.write(f"{error}\n")
        return MISCONFIGURED
    if given.check_config:
        put_out("\n".join(f"{key} = {value}" for key, value in settings.masked(config).items()))
        return OK
    gc.disable()  # imports leave no garbage
    from workerd.app.daemon import serve  # not imported for --check-config, which must be fast
    from workerd.logs import run_output
    from workerd.process import process_guard

    gc.enable()
    run_output.install()
    logs.configure(config.log_level, config.log_format, "workerd")
    process_guard.protect_log(config.log_level, logging.getLogger().handlers[0].formatter)
    try:
        failpoints.check(lambda name: name.startswith("worker."))
    except Misconfigured as error:
        sys.stderr.write(f"{error}\n")
        return MISCONFIGURED

    return run_daemon(partial(serve, config), Reload(config, lambda: read(_looked_for), "workerd"))


def _as_started(config: WorkerConfig) -> Iterator[settings.ConfigProblem]:
    """Return the problems that would end a start, now or later."""
    yield from config.unmade()
    if config.handlers:
        from workerd.executors import python  # heavy

        try:
            python.check(config.handlers)
        except Misconfigured as error:
            yield settings.ConfigProblem("handlers", str(error).removeprefix("handlers: "))


def _looked_for(config: WorkerConfig) -> Iterator[settings.ConfigProblem]:
    """Return the problems of a reload: modules of handlers that can't be found."""
    from workerd.executors import python

    for name in config.handlers:
        if not python.is_there(name):
            yield settings.ConfigProblem("handlers", f"module {name!r} not found")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workerd", description="Run the jobs that a schedd cluster assigns to this host."
    )
    for written, text in _OPTIONS.items():
        flag, _, value = written.partition(" ")
        if value:
            parser.add_argument(flag, metavar=value, help=text)
        else:
            parser.add_argument(flag, action="store_true", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
