"""The root command: the list of commands, and the exit code of every outcome."""

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import click

from schedclient import ApiError, Misconfigured, NotFound
from schedctl import failure
from schedctl.failure import CommandFailure, Trouble, UnfitEnvironment, more_violations
from schedctl.options.global_options import CommandGroup, pass_session, with_globals
from schedctl.output import show_data
from schedctl.session import Session
from schedkit.protojson.problems import did_you_mean
from schedkit.text.streams import swallow

COMMANDS: Final = {
    "apply": "schedctl.commands.apply:apply",
    "audit": "schedctl.commands.cluster:audit",
    "auth": "schedctl.commands.auth:auth",
    "calendar": "schedctl.commands.calendar:calendar",
    "cluster": "schedctl.commands.cluster:cluster",
    "config": "schedctl.commands.config:config",
    "cron": "schedctl.commands.cron:cron",
    "dev": "schedctl.dev.commands:group",
    "dlq": "schedctl.commands.dlq:dlq",
    "events": "schedctl.commands.run:events",
    "job": "schedctl.commands.job:job",
    "pool": "schedctl.commands.pool:pool",
    "run": "schedctl.commands.run:run",
    "submit": "schedctl.commands.run:submit",
    "worker": "schedctl.commands.worker:worker",
}

PROGRAM: Final = "schedctl"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of a write to stdout: the disk is full or broken."""


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    click.echo(f"{PROGRAM} {_this_version()}")
    ctx.exit()


def _this_version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("schedd")
    except PackageNotFoundError:
        return "unknown"


@with_globals
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version of schedctl and exit.",
)
@click.group(cls=CommandGroup, lazy=COMMANDS, context_settings={"auto_envvar_prefix": "SCHEDCTL"})
def root() -> None:
    """Manage a schedd cluster.

    An environment variable can set any option. For example, SCHEDCTL_ENDPOINTS=host:port,host:port
    sets --endpoints, and SCHEDCTL_JOB_CREATE_TZ=UTC sets --tz of `job create`.

    Exit codes: 0 success, 1 run failed, 2 invalid usage, 3 not found, 4 not allowed, 5 conflict,
    6 unavailable, 7 timed out, 70 internal error, 130 interrupted.
    """


@root.command()
@pass_session
def version(session: Session) -> None:
    """Print the version of schedctl, without a connection to a cluster."""
    if session.tabular or session.output == "name":
        click.echo(f"{PROGRAM} {_this_version()}")
    else:
        show_data(session, {"version": _this_version()})


def run(arguments: Sequence[str]) -> int:
    session = Session()
    failure.open_stdout()
    try:
        _check_text(arguments)
        with root.make_context(PROGRAM, list(arguments), obj=session) as ctx:
            root.invoke(ctx)
        sys.stdout.flush()
        return 0
    except (KeyboardInterrupt, click.Abort):
        return 130
    except ModuleNotFoundError:
        raise  # an extra: `__main__` names it
    except BrokenPipeError:
        swallow(sys.stdout)
        return 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        return failure.show(_usage(error))
    except CommandFailure as error:
        trouble = error.trouble
        if not trouble.remedy and trouble.status == "INVALID_ARGUMENT":
            trouble = replace(trouble, remedy=f"{session.command or PROGRAM} --help")
        return failure.show(trouble)
    except UnfitEnvironment as error:
        trouble = Trouble(str(error), "INVALID_ARGUMENT", "CONFIGURATION", (), error.remedy)
        return failure.show(trouble)
    except Misconfigured as error:
        remedy = "list the configured contexts: schedctl config contexts"
        return failure.show(Trouble(str(error), "INVALID_ARGUMENT", "CONFIGURATION", (), remedy))
    except ApiError as error:
        hint = _near_job(session) if isinstance(error, NotFound) else ""
        remedy = f"{hint} {error.remedy}".strip()
        details = more_violations(error)
        return failure.show(Trouble(error.what, error.status, error.reason, details, remedy))
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            return failure.show_bug(error)
        swallow(sys.stdout)
        what = f"standard output can't be written: {error.strerror}"
        remedy = "free disk space, or write the output to another file"
        return failure.show(Trouble(what, "UNAVAILABLE", "OUTPUT", remedy=remedy))
    except Exception as error:  # noqa: BLE001 - the outermost handler reports a bug, with exit code 70
        return failure.show_bug(error)


def _check_text(arguments: Sequence[str]) -> None:
    """Reject bytes that aren't UTF-8: Python accepts them, but protobuf messages can't."""
    for word in arguments:
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise CommandFailure(
                f"argument {os.fsencode(word)!r} isn't valid UTF-8",
                reason="NOT_TEXT",
                remedy="put the bytes into a file (--payload @FILE), or encode them as base64",
            )


def _usage(error: click.ClickException) -> Trouble:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
    remedy = f"{command or PROGRAM} --help"
    if isinstance(error, click.NoSuchOption) and error.ctx:
        known = [name for param in error.ctx.command.params for name in param.opts]
        wrong = error.option_name
        if "argv" in {param.name for param in error.ctx.command.params}:
            remedy = f"{remedy}; put -- before the command to run"
        remedy = f"{did_you_mean(wrong, known, begin='--')} {remedy}".strip()
        return Trouble(f"unknown option: {wrong}", "INVALID_ARGUMENT", "USAGE", (), remedy)
    return Trouble(error.format_message(), "INVALID_ARGUMENT", "USAGE", (), remedy)


def _near_job(session: Session) -> str:
    """Suggest a job whose name is close to the one that wasn't found."""
    if not session.asked_job:
        return ""
    try:
        jobs = session.collect(lambda client: client.jobs.list(limit=1000))
    except ApiError:
        return ""  # only a hint: report the first error
    return did_you_mean(session.asked_job, [job.name for job in jobs])
