"""`schedctl config`: which clusters are known, and which is in use."""

from __future__ import annotations

from pathlib import Path

import click

from schedclient.transport.transport import split_endpoints
from schedctl import contexts as kept
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import message, show_data, show_facts
from schedctl.session import Session
from schedkit.net.channel import TLS


@click.group(cls=CommandGroup)
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
@click.argument("name")
@pass_session
def delete(session: Session, name: str) -> None:
    """Forget a context, and nothing of its cluster."""
    del session
    kept.delete(name)
    message(f"forgot {name}")


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


_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@config.command("set")
@click.argument("name")
@click.option("--at", "endpoints", metavar="HOST:PORT,…", required=True, help="Its members.")
@click.option("--ca", type=_file, help="PEM file of the authority: talk TLS.")
@click.option("--cert", type=_file, help="Your certificate.")
@click.option("--key", type=_file, help="Its key.")
@click.option("--token-file", type=_file, help="A file with your access token.")
@pass_session
def set_context(
    session: Session,
    name: str,
    endpoints: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    token_file: Path | None,
) -> None:
    """Write a context, and put it to use."""
    del session
    if ca is None and (cert or key):
        raise click.UsageError("--cert and --key go with --ca")
    kept.save(
        name,
        split_endpoints(endpoints),
        tls=None if ca is None else _tls(ca, cert, key),
        token_file=token_file and token_file.absolute(),
    )
    message(f"schedctl now talks to {name}")


def _tls(ca: Path, cert: Path | None, key: Path | None) -> TLS:
    return TLS(ca.absolute(), cert and cert.absolute(), key and key.absolute())
