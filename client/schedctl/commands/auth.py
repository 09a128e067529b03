"""`schedctl auth`: certificates for clusters that have no authority, and access tokens."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from schedclient import AccessToken, ApiError, Identity, NewToken
from schedclient.values.access import MOST_COUNTED
from schedctl import contexts
from schedctl.columns import TOKENS
from schedctl.failure import CommandFailure
from schedctl.files import begin, unusable, using
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import instant, message, show_facts, show_listing, show_one
from schedctl.session import Session
from schedd.core.jobs.rights import (
    EVERY,
    NAMESPACE,
    IdentityKind,
    Role,
    is_name,
    uri_of,
    uris_of_user,
    uris_of_worker,
)
from schedkit.text import naming

if TYPE_CHECKING:
    from schedctl.authority import Subject

ROLES: Final = click.Choice([role.word for role in Role])
DAYS: Final = {"member": 90, "worker": 90, "user": 30}
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

_ca_option = click.option(
    "--ca-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The authority's folder.  [default: authority/ beside schedctl's configuration]",
)


@click.group(cls=CommandGroup)
def auth() -> None:
    """Who may do what: certificates, access tokens, and who you are."""


@auth.command()
@_ca_option
@pass_session
def init(session: Session, ca_dir: Path | None) -> None:
    """Make a certificate authority, for a cluster that has none."""
    from schedctl.authority import Authority

    del session
    folder = _folder(ca_dir)
    with using(folder):
        made = Authority.create(folder)
    message(f"made {made.certificate}; whoever has the key beside it can be anybody: keep it safe")
    click.echo(str(made.certificate))


@auth.command()
@click.argument("kind", type=click.Choice([*DAYS]))
@click.argument("name")
@click.option("--host", "hosts", multiple=True, help="Of a member: a name or address. Repeatable.")
@click.option("--role", type=ROLES, help="Of a user.")
@click.option(
    "--in",
    "namespaces",
    multiple=True,
    help="Of a user: where. Of a worker: whose runs it is given.  [default: everywhere, all]",
)
@click.option("--days", type=click.IntRange(1, 825), help="[default: 90; of a user 30]")
@_ca_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Where NAME.pem, NAME.key and ca.pem go.  [default: here]",
)
@pass_session
def issue(
    session: Session,
    kind: str,
    name: str,
    hosts: tuple[str, ...],
    role: str | None,
    namespaces: tuple[str, ...],
    days: int | None,
    ca_dir: Path | None,
    out: Path,
) -> None:
    """Sign a certificate of a member, a worker or a user. Again: a fresh one, in its place.

    Daemons take a fresh one by themselves, at the next handshake.
    """
    from schedctl.authority import Authority

    del session
    subject = _subject(kind, name, hosts, role, namespaces)
    lifetime = timedelta(days=days or DAYS[kind])
    with using(out):
        tls = Authority(_folder(ca_dir)).issue(subject, out, lifetime)
    message(f"{kind} {name}: good for {lifetime.days} days")
    for file in (tls.ca, tls.cert, tls.key):
        click.echo(str(file))


@auth.command()
@pass_session
def whoami(session: Session) -> None:
    """Who the cluster takes you for, and what you may."""
    found = session.run(lambda client: client.access.identity())
    if not session.tabular:
        show_one(session, found, (), lambda one: one.actor)
        return
    show_facts(
        session,
        [
            ("You are", found.actor),
            ("Roles", _roles(found)),
            ("Until", found.expires_at),
            ("By token", found.token_id),
        ],
    )


@auth.group(cls=CommandGroup)
def token() -> None:
    """Access tokens: what people and programs send to be known."""


@token.command()
@click.argument("name")
@click.option("--role", type=ROLES, required=True, help="What it is good for.")
@click.option("--in", "namespaces", multiple=True, help="Where.  [default: everywhere]")
@click.option("--lifetime", metavar="30d", help="From 1m to 366d.  [default: 30d]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it to this new file, 0600, instead of printing it.",
)
@pass_session
def create(
    session: Session,
    name: str,
    role: str,
    namespaces: tuple[str, ...],
    lifetime: str | None,
    out: Path | None,
) -> None:
    """Make one for NAME. It is told this once: only a digest of it is stored."""
    with begin(out) if out else nullcontext() as file:
        made = session.run(
            lambda client: client.access.create_token(
                name, role, namespaces=namespaces, lifetime=lifetime
            )
        )
        if out and file:
            _keep(session, made, file, out)
    until = made.token.expires_at
    message(f"token {made.token.token_id} of {name}: {role}, until {until:%Y-%m-%d %H:%M} UTC")
    if out:
        return
    if session.output == "table":
        click.echo(made.secret)
    else:
        show_one(session, made, (), lambda one: one.secret)


@token.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_tokens(session: Session, limit: int | None) -> None:
    """Those that there are, newest first; ended ones for 30 days more."""
    show_listing(
        session,
        limit,
        lambda client, most: client.access.tokens(limit=most),
        TOKENS,
        lambda one: one.token_id,
    )


@token.command()
@click.argument("token_id")
@pass_session
def revoke(session: Session, token_id: str) -> None:
    """Make one worth nothing, with all that was made by it: within five seconds, everywhere."""
    revoked: AccessToken = session.run(lambda client: client.access.revoke_token(token_id))
    if session.tabular:
        since = instant(session, revoked.revoked_at)
        message(f"the token of {revoked.name} is revoked: {since}, by {revoked.revoked_by}")
        if count := revoked.ended_with_it:
            were = "was" if count == 1 else "were"
            told = count if count < MOST_COUNTED else f"{count} or more"
            message(f"{told} that {were} made by it ended with it")
    else:
        show_one(session, revoked, TOKENS, lambda one: one.token_id)


def _keep(session: Session, made: NewToken, file: FileIO, out: Path) -> None:
    """Write what is told once. One that can't be written is nobody's: it is revoked."""
    left = f"{made.secret}\n".encode()
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except BaseException as error:  # Ctrl-C, too
        alive = _still_alive(session, made.token.token_id)
        if isinstance(error, OSError):
            remedy = "make room for it, or name another place: this token was revoked"
            raise unusable(error, out, alive or remedy) from error
        message(alive or "this token was revoked")
        raise


def _still_alive(session: Session, token_id: str) -> str:
    """Revoke it. What is to be done where that fails; empty: nothing."""
    try:
        session.run(lambda client: client.access.revoke_token(token_id))
    except (ApiError, KeyboardInterrupt):
        return f"revoke it, for nobody has it: schedctl auth token revoke {token_id}"
    return ""


def _folder(given: Path | None) -> Path:
    return given or contexts.path().parent / "authority"


_DAEMONS: Final = {"worker": naming.WORKER, "member": naming.MEMBER}


def _subject(
    kind: str, name: str, hosts: Sequence[str], role: str | None, namespaces: Sequence[str]
) -> Subject:
    """Whom to sign for. Raises Failure with what is missing or too much."""
    from schedctl.authority import Subject

    def wrong(what: str, remedy: str) -> CommandFailure:
        return CommandFailure(what, reason="USAGE", remedy=remedy)

    if not is_name(name):
        raise wrong(f"{name!r} can't name anybody", "use letters, digits, '.', '_', '@', '+', '-'")
    if (may := _DAEMONS.get(kind)) is not None and not may.fullmatch(name):
        raise wrong(f"no {kind} can be named {name!r}", f"it must match {may.pattern}")
    for namespace in namespaces:
        if namespace != EVERY and not NAMESPACE.fullmatch(namespace):
            raise wrong(f"{namespace!r} isn't a namespace", "as in `--namespace`")
    if kind == "user":
        if hosts or role is None:
            raise wrong("a user has a role and no host", "give --role viewer, operator or admin")
        granted = uris_of_user(name, Role[role.upper()], [*dict.fromkeys(namespaces)] or [EVERY])
        return Subject(name, granted)
    if role is not None:
        raise wrong(f"a {kind} has no role", "leave --role out")
    if kind == "worker":
        if hosts:
            raise wrong("a worker serves nobody", "leave --host out")
        own = [] if EVERY in namespaces else dict.fromkeys(namespaces)
        return Subject(name, uris_of_worker(name, own))
    if namespaces:
        raise wrong("a member serves all namespaces", "leave --in out")
    if not hosts:
        raise wrong("others reach a member by its host", "give --host NAME or ADDRESS, for each")
    for host in hosts:
        if not _HOST.fullmatch(host) and not _is_v6(host):
            raise wrong(f"{host!r} isn't a host", "give a name or an address, without a port")
    return replace(Subject(name, [uri_of(IdentityKind(kind), name)]), hosts=hosts)


def _roles(who: Identity) -> str:
    where = {EVERY: "everywhere"}
    told = (f"{one.role.lower()} {where.get(one.namespace, one.namespace)}" for one in who.grants)
    return ", ".join(told) or "none"


def _is_v6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False
