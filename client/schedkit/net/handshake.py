"""Explain why a TLS connection with a member fails: gRPC's own errors have few details.

    connect ─▶ handshake: is the member's certificate one for us? ─▶ wait a moment: is ours for it?

A client learns only after the handshake that its own certificate was refused (TLS 1.3).
"""

import socket
import ssl
from typing import Final

from schedkit.clock import utcnow
from schedkit.errors import Misconfigured
from schedkit.net.certificates import first_of
from schedkit.net.channel import TLS, split_address
from schedkit.records import dataclass

WITHIN: Final = 2.0
"""Seconds for connecting and for the handshake each."""
REFUSED_WITHIN: Final = 0.5
"""Seconds for a member to reject our certificate."""
LOOKS_WITHIN: Final = 1.0
"""Seconds for connecting and for the handshake each, for clients without TLS."""
_ASKED: Final = "the member requires a client certificate, and none is configured"
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


FILES: Final = "check ca, cert and key, and the hosts of the member's certificate"
NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})
"""OpenSSL's reasons that mean the answer isn't TLS."""
IN_THE_CLEAR: Final = (
    "connect to a member that has [tls], or leave ca, cert and key out (for schedctl: use a context"
    " without tls)"
)
NONE_OF_OURS: Final = (
    "send a token to the members' port for tokens (listen.grpc_tokens), such as host:7423; or give"
    " cert and key for this port"
)


@dataclass(frozen=True, slots=True)
class TlsFailure:
    what: str
    remedy: str = FILES


def why_not(endpoint: str, tls: TLS) -> TlsFailure | None:
    """Return why TLS with `host:port` fails; None if it works. Blocks for seconds."""
    try:
        if ours := out_of_time(tls):
            return TlsFailure(ours)
        context = ssl.create_default_context(cafile=tls.ca)
        context.set_alpn_protocols(["h2"])
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (Misconfigured, ValueError, OSError) as error:
        return TlsFailure(str(error))
    host, port = split_address(endpoint)
    try:
        plain = socket.create_connection((host, port), WITHIN)
    except OSError:
        return None
    with plain:
        return _tried(context, plain, host, ours=tls.cert is not None)


def out_of_time(tls: TLS) -> str:
    """Return why our certificate, as read from its file, isn't valid now; empty if it is, or if we
    have none. Raises Misconfigured: one of the files can't be read. ValueError: the file contains
    no certificate.
    """
    _, cert, _ = tls.read()
    if cert is None:
        return ""
    found, now = first_of(cert, tls.cert), utcnow()
    ours = f"the client certificate {tls.cert}"
    if found.not_after <= now:
        return f"{ours} expired at {found.not_after:%Y-%m-%d %H:%M} UTC"
    if now < found.not_before:
        begins = f"{ours} isn't valid before {found.not_before:%Y-%m-%d %H:%M} UTC"
        return f"{begins}, and this host's clock shows {now:%Y-%m-%d %H:%M}"
    return ""


def is_tls(endpoint: str) -> bool:
    """Return whether `host:port` uses TLS. Blocks for seconds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and no answer is trusted
    context.set_alpn_protocols(["h2"])
    host, port = split_address(endpoint)
    try:
        with socket.create_connection((host, port), LOOKS_WITHIN) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # TLS 1.2 rejects a missing certificate here
    except OSError:
        return False
    return True


def in_words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason for a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).lower().replace("_", " ")


def _tried(
    context: ssl.SSLContext, plain: socket.socket, host: str, *, ours: bool
) -> TlsFailure | None:
    """Try a handshake. Return its failure, or None. `ours`: whether we have a certificate."""
    try:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            secure.sendall(_HELLO)
            secure.settimeout(REFUSED_WITHIN)
            while secure.recv(4096):
                continue
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        return TlsFailure(f"the member's certificate isn't valid: {in_words(error)}")
    except ssl.SSLError as error:
        if error.reason in NO_TLS:
            return TlsFailure("the member serves plaintext, but this client uses TLS", IN_THE_CLEAR)
        if not ours and "CERTIFICATE" in (error.reason or ""):
            return TlsFailure(_ASKED, NONE_OF_OURS)
        return TlsFailure(f"the member rejects the client certificate: {in_words(error)}")
    except OSError:
        return TlsFailure("the member ended the handshake")
    ended = "the member ended the connection after the handshake"
    if not ours:
        return TlsFailure(f"{ended}: {_ASKED}", NONE_OF_OURS)
    return TlsFailure(f"{ended}: the member doesn't accept the client certificate")
