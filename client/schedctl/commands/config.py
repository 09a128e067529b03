"""`schedctl config`: which clusters are known, and which is in use."""

from __future__ import annotations

import click

from schedctl import contexts as kept
from schedctl.flags import Group, pass_session
from schedctl.output import message, show_data, show_facts
from schedctl.session import Session


@click.group(cls=Group)
def config() -> None:
    """Contexts: clusters by name."""


@config.command()
@pass_session
def contexts(session: Session) -> None:
    """All contexts; a star stands before the one in use."""
    told = kept.load()
    if session.tabular:
        for name, context in told.known.items():
            star = "*" if name == told.current else " "
            click.echo(f"{star} {name}  {','.join(context.endpoints)}")
    elif session.output == "name":
        for name in told.known:
            click.echo(name)
    else:
        known = {name: list(context.endpoints) for name, context in told.known.items()}
        show_data(session, {"current": told.current, "contexts": known})


@config.command()
@click.argument("name")
@pass_session
def use(session: Session, name: str) -> None:
    """Put a context to use."""
    del session
    kept.use(name)
    message(f"schedctl now talks to {name}")


@config.command()
@pass_session
def view(session: Session) -> None:
    """Where the configuration is, and what the context in use says."""
    context = kept.current()
    show_facts(
        session,
        [
            ("File", str(kept.path())),
            ("Context", context.name if context else "none"),
            ("Endpoints", context.endpoints if context else ()),
            ("Namespace", session.namespace),
            ("TLS", bool(context and context.tls)),
            ("Token file", str(context.token_file) if context and context.token_file else None),
            ("Protected", bool(context and context.protected)),
        ],
    )
