"""`schedctl version`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from schedctl.options.global_options import Command, pass_session
from schedctl.output import show_data
from schedctl.session import Session


@click.command(cls=Command)
@pass_session
def version(session: Session) -> None:
    """Print the version of schedctl, without a connection to a cluster."""
    found = this_version()
    if session.tabular or session.output == "name":
        click.echo(f"schedctl {found}")
    else:
        show_data(session, {"version": found})


def this_version() -> str:
    """Return the version of the installed package."""
    try:
        return installed("schedd")
    except PackageNotFoundError:
        return "unknown"
