"""The command `schedd`: the daemon, and `schedd migrate`, `recover` and `claim-prefix`."""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

NEEDS = "schedd needs its extra: pip install 'schedd[server]' (missing: {module})"


def main() -> int:
    """Run what the command line says; the process's exit code."""
    gc.disable()  # imports leave no garbage, and searching for it is a sixth of a start
    try:
        ended = _begin(sys.argv[1:])
    except ModuleNotFoundError as error:
        return _missing(error)
    finally:
        gc.enable()
    return ended if isinstance(ended, int) else ended()


def _missing(error: ModuleNotFoundError) -> int:
    root = (error.name or "").partition(".")[0]
    if root in {"schedd", "schedkit", "schedproto"}:
        raise error
    sys.stderr.write(NEEDS.format(module=error.name) + "\n")
    return 2


def _begin(argv: list[str]) -> int | Callable[[], int]:
    """An exit code, or the daemon to run. Its parts are loaded for that alone: help and checks come
    at once.
    """
    options = _parser().parse_args(argv)
    from schedd.config import member_config as settings
    from schedkit import failpoints
    from schedkit.config import loader as config
    from schedkit.daemon import logs
    from schedkit.errors import NotNow, ScheddError
    from schedkit.text.streams import put_out

    file = options.config or (settings.DEFAULT_FILE if settings.DEFAULT_FILE.exists() else None)
    flags = {
        key: value
        for key, value in vars(options).items()
        if key not in {"config", "check_config", "command"}
    }

    def read() -> settings.Config:
        return config.load(
            settings.Config,
            file=file,
            environ=os.environ,
            prefix=settings.PREFIX,
            flags=flags,
            foreign=config.JOB_VARIABLES | {failpoints.VARIABLE},
            # Commands on the schema connect to PostgreSQL only: they need no certificates.
            also=lambda found: found.credentials() if options.command is None else (),
        )

    try:
        found = read()
        if not options.check_config or os.environ.get(failpoints.VARIABLE):
            import_module("schedd.app.daemon")  # with it all the places that may be named
        failpoints.check(lambda name: not name.startswith("worker."))
        if options.check_config:
            put_out(json.dumps(config.masked(found), indent=2, default=str))
            return 0
        from schedd.app.daemon import MemberDaemon, migrate
        from schedd.app.recover import claim_prefix, recover
        from schedkit.daemon.reload import Reload
        from schedkit.daemon.service import run_daemon

        logs.configure(found.log_level, found.log_format, "schedd")
        if options.command == "migrate":
            put_out(f"schema: {migrate(found)}")
            return 0
        if options.command == "recover":
            put_out("\n".join(recover(found)))
            return 0
        if options.command == "claim-prefix":
            put_out(claim_prefix(found))
            return 0
    except NotNow as error:
        sys.stderr.write(f"schedd: {error}\n")
        return NotNow.EXIT_CODE
    except ScheddError as error:
        sys.stderr.write(f"schedd: {error}\n")
        return 2
    daemon = MemberDaemon(found)
    return partial(run_daemon, daemon.run, Reload(found, read, "schedd", daemon.take_logins))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="schedd",
        description="Run a member of a schedd cluster. A command instead prepares the cluster's"
        " database or its keys in etcd, then exits.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["migrate", "recover", "claim-prefix"],
        help="migrate: create or upgrade the database schema; recover: after a restore of the"
        " database, pause the cluster until `schedctl cluster resume`; claim-prefix: assign"
        " the etcd prefix to the cluster of this database (default: run a member)",
    )
    parser.add_argument(
        "--config", type=Path, help="TOML file with settings (default: /etc/schedd/schedd.toml)"
    )
    parser.add_argument(
        "--check-config", action="store_true", help="check and print the settings, then exit"
    )
    for flag, key, text in (
        ("--name", "name", "member name, unique in the cluster (default: the host's name)"),
        (
            "--listen-grpc",
            "listen.grpc",
            "host:port at which the member serves gRPC (default: 127.0.0.1:7420)",
        ),
        (
            "--listen-http",
            "listen.http",
            "host:port at which the member serves HTTP (default: 127.0.0.1:7421)",
        ),
        (
            "--etcd-endpoints",
            "etcd.endpoints",
            "addresses of etcd, as host:port,host:port (default: 127.0.0.1:2379)",
        ),
        (
            "--postgres-dsn",
            "postgres.dsn",
            "URL of the database: postgresql://user@host/schedd (required here or in the file)",
        ),
        ("--log-level", "log_level", "debug, info, warning or error (default: info)"),
        ("--log-format", "log_format", "text or json (default: text)"),
    ):
        parser.add_argument(flag, dest=key, help=text)
    return parser


def run() -> NoReturn:
    """For `python -m schedd`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
