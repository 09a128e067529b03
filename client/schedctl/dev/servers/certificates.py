"""The certificates of a cluster with `--tls`: its own authority, in D/tls.

D/tls/ca.pem  ca.key  m1.pem m1.key …  w1.pem w1.key …  dev.pem dev.key (you, as admin)
"""

import ssl
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind
from schedd.core.auth import rights
from schedd.core.auth.rights import EVERY, Role, uri_of, uris_of_user
from schedkit.net.channel import TLS

YOU: Final = "dev"
LIFETIME: Final = timedelta(days=365)
HOSTS: Final = ("127.0.0.1", "localhost")
_KINDS: Final = {
    PartKind.MEMBER: rights.IdentityKind.MEMBER,
    PartKind.WORKER: rights.IdentityKind.WORKER,
}


def issue(folder: ClusterFolder, parts: Iterable[ClusterPart]) -> None:
    """Issue certificates for these daemons and for you; create the authority the first time."""
    from schedctl.authority import Authority, Subject

    authority = Authority(folder.tls)
    if not authority.certificate.exists():
        authority = Authority.create(folder.tls)
    subjects = [
        Subject(
            part.name,
            [uri_of(_KINDS[part.kind], part.name)],
            HOSTS if part.kind is PartKind.MEMBER else (),
        )
        for part in parts
    ]
    for subject in (*subjects, Subject(YOU, uris_of_user(YOU, Role.ADMIN, [EVERY]))):
        authority.issue(subject, folder.tls, LIFETIME)


def files_of(folder: ClusterFolder, name: str) -> TLS:
    return TLS(folder.tls / "ca.pem", folder.tls / f"{name}.pem", folder.tls / f"{name}.key")


def settings_of(folder: ClusterFolder, state: ClusterState, name: str) -> dict[str, dict[str, str]]:
    if not state.tls:
        return {}
    tls = files_of(folder, name)
    return {"tls": {"ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key)}}


def trust(folder: ClusterFolder, state: ClusterState) -> ssl.SSLContext | None:
    """Return the context for HTTPS to members; None without TLS."""
    if not state.tls:
        return None
    you = files_of(folder, YOU)
    context = ssl.create_default_context(cafile=you.ca)
    assert you.cert is not None
    context.load_cert_chain(you.cert, you.key)
    return context
