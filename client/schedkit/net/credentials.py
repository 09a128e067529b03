"""Check the files of a daemon's `[tls]` before it starts, all at once.

    each file exists, and is PEM ─▶ the certificate's validity and names ─▶ the key fits it
        ─▶ a handshake with itself: do its authorities sign it, for this purpose?

Otherwise an error in these files shows only as closed connections, on the other side.
"""

import ssl
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from schedkit.config.loader import ConfigProblem, Untimely
from schedkit.net.certificates import first_of, listed_names, unfit
from schedkit.net.channel import TLS
from schedkit.net.handshake import in_words
from schedkit.records import dataclass

_NOT_YET, _ENDED, _PURPOSE = 9, 10, 26
"""OpenSSL's X509_V_ERR_… codes."""
_ROUNDS: Final = 10
"""Maximum rounds of a handshake in memory; three are usual."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """The owner of the certificate. `is_named`: whether these URIs name it and no other process."""

    kind: str
    name: str
    uri: str
    is_named: Callable[[Sequence[str]], bool]
    issue: str
    """The command that issues a certificate."""
    serves: bool
    """Whether other processes connect to it, too."""


def problems(tls: TLS, bearer: Bearer, now: datetime) -> list[ConfigProblem]:
    """Return why this daemon can't be identified or reached with these files; empty if it can."""
    cert, key = tls.pair()
    found = unusable("tls", tls.ca, cert, key)
    bad = {problem.where for problem in found}
    if "tls.cert" not in bad:
        found += _judged(cert, bearer, now)
    if not bad and (refused := _refused(tls, bearer, now)):
        found.append(refused)
    return found


def unusable(
    section: str, ca: Path | None, cert: Path | None, key: Path | None
) -> list[ConfigProblem]:
    """Return a problem for each given file of a section that can't be read or isn't valid."""
    found = [
        ConfigProblem(f"{section}.{name}", why)
        for name, file in (("ca", ca), ("cert", cert), ("key", key))
        if file is not None and (why := _unusable(name, file))
    ]
    bad = {problem.where for problem in found} & {f"{section}.cert", f"{section}.key"}
    if not bad and cert and key and (why := unfit(cert, key)):
        found.append(ConfigProblem(f"{section}.key", f"{why}; give a matching pair"))
    return found


def untimely(where: str, file: Path, now: datetime, fresh: str) -> Iterator[ConfigProblem]:
    """Return a problem if this file's certificate isn't valid now. `fresh`: how to replace it."""
    found = first_of(file.read_bytes(), file)
    if found.not_after <= now:
        yield Untimely(
            where, f"the certificate {file} expired at {_minute(found.not_after)}; {fresh}"
        )
    if now < found.not_before:
        begins = (
            f"the certificate {file} isn't valid before {_minute(found.not_before)}, and now"
            f" it is {_minute(now)}"
        )
        yield Untimely(where, f"{begins}: correct this host's clock, or {fresh}")


def unreadable(file: Path) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # reading it might block forever
            return f"{file} can't be read: it isn't a regular file"
        with file.open("rb"):
            return ""
    except OSError as error:
        why = f"{file} can't be read: {error.strerror}"
        return f"{why}; give a file that the daemon's user can read"


def _unusable(name: str, file: Path) -> str:
    if why := unreadable(file):
        return why
    content = file.read_bytes()
    try:
        if name == "ca":
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        elif name == "cert":
            first_of(content)
    except (OSError, ValueError):
        if name == "ca":
            return f"{file} contains no certificate of an authority: give a PEM file that has one"
        return f"{file} isn't a readable certificate: give the PEM file of a certificate"
    if name == "key" and b"ENCRYPTED" in content:
        return f"{file} is encrypted: give a key without a passphrase"
    if name == "key" and b"PRIVATE KEY-----" not in content:
        return f"{file} isn't a readable private key: give the PEM file of a private key"
    return ""


def _judged(file: Path, bearer: Bearer, now: datetime) -> Iterator[ConfigProblem]:
    found = first_of(file.read_bytes(), file)
    yield from untimely("tls.cert", file, now, f"issue a fresh one: {bearer.issue}")
    if not bearer.is_named(found.uris):
        likes = bearer.uri.removesuffix(bearer.name)
        another = any(uri.startswith(likes) for uri in found.uris)
        yield ConfigProblem(
            "tls.cert",
            f"{file} names {listed_names(found.uris)}, but this {bearer.kind} is {bearer.name!r}:"
            f" its certificate must have the URI {bearer.uri} and no other name;"
            f" issue it: {bearer.issue}{', or set `name` as the certificate' * another}",
        )


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _refused(tls: TLS, bearer: Bearer, now: datetime) -> ConfigProblem | None:
    """Check the certificate against its own authorities."""
    server = _context(tls, ssl.PROTOCOL_TLS_SERVER, verifies=True)
    client = _context(tls, ssl.PROTOCOL_TLS_CLIENT, verifies=bearer.serves)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = {
        "be called": client.wrap_bio(down, up),
        "call": server.wrap_bio(up, down, server_side=True),
    }
    for _ in range(_ROUNDS):
        for purpose, side in sides.items():
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return _against(error, tls, bearer, purpose, now)
    return None


def _context(tls: TLS, protocol: int, *, verifies: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(*tls.pair())
    return context


def _against(
    error: ssl.SSLError, tls: TLS, bearer: Bearer, purpose: str, now: datetime
) -> ConfigProblem | None:
    why, cert = in_words(error), tls.pair()[0]
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ConfigProblem(
            "tls.cert", f"a TLS handshake with the certificate {cert} fails: {why}"
        )
    found = first_of(cert.read_bytes(), cert)
    if error.verify_code in (_NOT_YET, _ENDED):
        if not found.not_before <= now < found.not_after:
            return None  # reported already
        return Untimely(
            "tls.ca",
            f"the certificate of the authority that signed {tls.cert} isn't valid now: {why}",
        )
    if error.verify_code == _PURPOSE:
        what = f"{tls.cert} doesn't allow a {bearer.kind} to {purpose}, by its key usage"
        return ConfigProblem("tls.cert", f"{what}; issue it: {bearer.issue}")
    return ConfigProblem(
        "tls.cert",
        f"the certificate {tls.cert} isn't signed by an authority of {tls.ca}: {why}; set `ca`"
        " to the authority that signed the certificate, or append the intermediate certificates"
        " to its file",
    )
