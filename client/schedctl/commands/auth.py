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
from schedclient.values.cluster import MOST_COUNTED
from schedctl import contexts
from schedctl.columns import TOKENS
from schedctl.failure import CommandFailure
from schedctl.files import begin, unusable, using
from schedctl.options.global_options import CommandGroup, limit_option, option, pass_session
from schedctl.output import ValueTable, instant, message, show_facts, show_listing, show_one
from schedctl.session import Session
from schedd.core.auth.rights import (
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

_ca_option = option(
    "--ca-dir",
    "Folder of the certificate authority.  [default: authority/ beside schedctl's configuration]",
    type=click.Path(file_okay=False, path_type=Path),
)


@click.group(cls=CommandGroup)
def auth() -> None:
    """Manage certificates and access tokens, and show your own identity."""


@auth.command()
@_ca_option
def init(ca_dir: Path | None) -> None:
    """Create the certificate authority of a new cluster."""
    from schedctl.authority import Authority

    folder = _folder(ca_dir)
    with using(folder):
        made = Authority.create(folder)
    message(f"created {made.certificate}; the key beside it can issue any identity: keep it safe")
    click.echo(str(made.certificate))


@auth.command()
@click.argument("kind", type=click.Choice([*DAYS]))
@click.argument("name")
@option(
    "--host",
    "Host name or address of the member, for its certificate; repeatable."
    "  [default: none; required for a member]",
    "hosts",
    multiple=True,
)
@option(
    "--role",
    "Role that the certificate grants to the user.  [default: none; required for a user]",
    type=ROLES,
)
@option(
    "--in",
    "Namespace to which a certificate of a user or worker is limited;"
    " repeatable.  [default: all namespaces]",
    "namespaces",
    multiple=True,
)
@option(
    "--days N",
    "Lifetime of the certificate in days.  [default: 90; for a user 30]",
    type=click.IntRange(1, 825),
)
@_ca_option
@option(
    "--out",
    "Folder to write NAME.pem, NAME.key and ca.pem to.  [default: the working directory]",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
)
def issue(
    kind: str,
    name: str,
    hosts: tuple[str, ...],
    role: str | None,
    namespaces: tuple[str, ...],
    days: int | None,
    ca_dir: Path | None,
    out: Path,
) -> None:
    """Issue a certificate for a member, a worker or a user, or renew it.

    schedd and workerd load a renewed certificate automatically, at the next TLS handshake.
    """
    from schedctl.authority import Authority

    subject = _subject(kind, name, hosts, role, namespaces)
    lifetime = timedelta(days=days or DAYS[kind])
    with using(out):
        tls = Authority(_folder(ca_dir)).issue(subject, out, lifetime)
    message(f"{kind} {name}: valid for {lifetime.days} days")
    for file in (tls.ca, tls.cert, tls.key):
        click.echo(str(file))


@auth.command()
@pass_session
def whoami(session: Session) -> None:
    """Show your identity and your roles."""
    found = session.run(lambda client: client.access.identity())
    if not session.tabular:
        show_one(session, found, ValueTable(Identity, "actor"))
        return
    places = {EVERY: "all namespaces"}
    grants = [f"{e.role.lower()} {places.get(e.namespace, e.namespace)}" for e in found.grants]
    show_facts(
        session,
        [
            ("Identity", found.actor),
            ("Roles", ", ".join(grants) or "none"),
            ("Expires", found.expires_at),
            ("Token", found.token_id),
        ],
    )


@auth.group(cls=CommandGroup)
def token() -> None:
    """Manage access tokens, which authenticate people and programs."""


@token.command()
@click.argument("name")
@option("--role", "Role that the token grants.", type=ROLES, required=True)
@option(
    "--in",
    "Namespace in which the token grants its role; repeatable.  [default: all namespaces]",
    "namespaces",
    multiple=True,
)
@option("--lifetime 30d", "Lifetime of the token, from 1m to 366d.  [default: 30d]")
@option(
    "--out",
    "New file to write the token to, with mode 0600.  [default: stdout]",
    type=click.Path(dir_okay=False, path_type=Path),
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
    """Create an access token for NAME, a person or a program.

    The token is shown only once: the cluster stores only its digest.
    """
    with begin(out) if out else nullcontext() as file:
        made = session.run(
            lambda client: client.access.create_token(
                name, role, namespaces=namespaces, lifetime=lifetime
            )
        )
        if out and file:
            _write_token_file(session, made, file, out)
    until = made.token.expires_at
    message(f"token {made.token.token_id} of {name}: {role}, until {until:%Y-%m-%d %H:%M} UTC")
    if out:
        return
    if session.output == "table":
        click.echo(made.secret)
    else:
        show_one(session, made, ValueTable(NewToken, "secret"))


@token.command("list")
@limit_option
@pass_session
def list_tokens(session: Session, limit: int | None) -> None:
    """List tokens, newest first. Expired and revoked tokens are listed for 30 days."""
    show_listing(session, limit, lambda client, most: client.access.tokens(limit=most), TOKENS)


@token.command()
@click.argument("token_id")
@pass_session
def revoke(session: Session, token_id: str) -> None:
    """Revoke a token, and all tokens that callers created with this token.

    All members reject a revoked token after at most 5 s.
    """
    revoked: AccessToken = session.run(lambda client: client.access.revoke_token(token_id))
    if session.tabular:
        since = instant(session, revoked.revoked_at)
        message(f"token of {revoked.name} revoked: {since}, by {revoked.revoked_by}")
        if count := revoked.descendants_revoked:
            tokens = "token" if count == 1 else "tokens"
            shown = count if count < MOST_COUNTED else f"{count} or more"
            message(f"{shown} {tokens} that callers created with this token revoked, too")
    else:
        show_one(session, revoked, TOKENS)


def _write_token_file(session: Session, made: NewToken, file: FileIO, out: Path) -> None:
    left = f"{made.secret}\n".encode()
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except BaseException as error:  # Ctrl-C, too
        remedy, token_id = "", made.token.token_id
        try:
            session.run(lambda client: client.access.revoke_token(token_id))
        except (ApiError, KeyboardInterrupt):
            remedy = f"the token is unusable; revoke it: schedctl auth token revoke {token_id}"
        if isinstance(error, OSError):
            revoked = "free disk space, or name another file; this token was revoked"
            raise unusable(error, out, remedy or revoked) from error
        message(remedy or "this token was revoked")
        raise


def _folder(given: Path | None) -> Path:
    return given or contexts.path().parent / "authority"


_DAEMONS: Final = {"worker": naming.WORKER, "member": naming.MEMBER}


def _subject(
    kind: str, name: str, hosts: Sequence[str], role: str | None, namespaces: Sequence[str]
) -> Subject:
    """Return the subject; raise CommandFailure if an option is missing or doesn't apply."""
    from schedctl.authority import Subject

    def wrong(what: str, remedy: str) -> CommandFailure:
        return CommandFailure(what, reason="USAGE", remedy=remedy)

    if not is_name(name):
        raise wrong(
            f"{kind} name {name!r} isn't valid",
            "use only letters, digits, '.', '_', '@', '+' and '-'",
        )
    patterns = [(f"{kind} name", name, _DAEMONS.get(kind))]
    patterns += [("namespace", one, NAMESPACE) for one in namespaces if one != EVERY]
    for what, given, may in patterns:
        if may is not None and not may.fullmatch(given):
            remedy = f"give a name that matches the pattern {may.pattern}"
            raise wrong(f"{what} {given!r} isn't valid", remedy)
    if kind == "user":
        if hosts or role is None:
            raise wrong(
                "a user's certificate must have --role, and can't be combined with --host",
                "give --role viewer, operator or admin, and remove --host",
            )
        granted = uris_of_user(name, Role[role.upper()], [*dict.fromkeys(namespaces)] or [EVERY])
        return Subject(name, granted)
    for flag, unfit, why in (
        ("--role", role is not None, "only users have roles"),
        ("--host", kind == "worker" and hosts, "nothing connects to a worker"),
        ("--in", kind == "member" and namespaces, "a member serves all namespaces"),
    ):
        if unfit:
            raise wrong(f"{flag} doesn't apply to a {kind}'s certificate: {why}", f"remove {flag}")
    if kind == "worker":
        own = [] if EVERY in namespaces else dict.fromkeys(namespaces)
        return Subject(name, uris_of_worker(name, own))
    if not hosts:
        raise wrong(
            "a member's certificate needs --host",
            "give each name or address of the member: --host NAME",
        )
    for host in hosts:
        try:
            named = ipaddress.IPv6Address(host).scope_id is None
        except ValueError:
            named = bool(_HOST.fullmatch(host))
        if not named:
            raise wrong(f"host {host!r} isn't valid", "give a name or an address, without a port")
    return replace(Subject(name, [uri_of(IdentityKind(kind), name)]), hosts=hosts)
