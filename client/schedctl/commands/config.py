"""`schedctl config`: the configured clusters, and the current one."""

from pathlib import Path

import click

from schedclient.transport.transport import split_endpoints
from schedctl import contexts as kept
from schedctl.options.global_options import CommandGroup, option, pass_session
from schedctl.output import message, show_data, show_facts
from schedctl.session import Session
from schedkit.net.channel import TLS


@click.group(cls=CommandGroup)
def config() -> None:
    """Manage contexts: the clusters that schedctl knows by name."""


@config.command()
@pass_session
def contexts(session: Session) -> None:
    """List contexts; a star marks the current context."""
    found = kept.load()
    if session.tabular:
        for name, context in found.known.items():
            star = "*" if name == found.current else " "
            click.echo(f"{star} {name}  {','.join(context.endpoints)}")
    elif session.output == "name":
        for name in found.known:
            click.echo(name)
    else:
        endpoints = {name: list(context.endpoints) for name, context in found.known.items()}
        show_data(session, {"current": found.current, "contexts": endpoints})


@config.command()
@click.argument("name")
def use(name: str) -> None:
    """Select the current context."""
    kept.use(name)
    message(f"current context: {name}")


@config.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete a context. The cluster of the context isn't changed."""
    kept.delete(name)
    message(f"deleted context {name}")


@config.command()
@pass_session
def view(session: Session) -> None:
    """Show the path of the configuration file, and the current context."""
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
@option("--at HOST:PORT,…", "Addresses of members of the cluster.", "endpoints", required=True)
@option(
    "--ca",
    "PEM file of the cluster's certificate authority; turns TLS on.  [default: no TLS]",
    type=_file,
)
@option(
    "--cert",
    "PEM file of your client certificate; needs --ca.  [default: no certificate]",
    type=_file,
)
@option("--key", "PEM file of the private key of --cert.  [default: no key]", type=_file)
@option("--token-file", "File with your access token.  [default: no token]", type=_file)
def set_context(
    name: str,
    endpoints: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    token_file: Path | None,
) -> None:
    """Create or change a context, and select it as the current context."""
    if ca is None and (cert or key):
        raise click.UsageError(
            "--cert and --key need --ca, the certificate authority of the cluster: add --ca FILE"
        )
    kept.save(
        name,
        split_endpoints(endpoints),
        tls=ca and TLS(ca.absolute(), cert and cert.absolute(), key and key.absolute()),
        token_file=token_file and token_file.absolute(),
    )
    message(f"current context: {name}")
