"""Why no TLS comes to stand with a member, in words: gRPC itself says little, and seldom to whom.

    connect ─▶ handshake: is the member's certificate one for us? ─▶ wait a moment: is ours for it?

A client learns only after the handshake that its own certificate was refused (TLS 1.3).
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from schedkit.certificates import not_after
from schedkit.channel import TLS, split_address
from schedkit.clock import utcnow
from schedkit.errors import Misconfigured

WITHIN: Final = 2.0
"""Seconds for connecting and for the handshake each."""
REFUSED_WITHIN: Final = 0.5
"""Seconds in which a member that refuses our certificate says so."""
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def why_not(endpoint: str, tls: TLS) -> str:
    """What keeps TLS with `host:port` from standing; empty: nothing of TLS. Blocks for seconds."""
    try:
        _, cert, _ = tls.read()
        if cert is not None and (ended := not_after(cert)) <= utcnow():
            return f"our certificate {tls.cert} ended at {ended:%Y-%m-%d %H:%M} UTC"
        context = ssl.create_default_context(cafile=tls.ca)
        context.set_alpn_protocols(["h2"])
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (Misconfigured, ValueError, OSError) as error:
        return str(error)
    host, port = split_address(endpoint)
    try:
        plain = socket.create_connection((host, port), WITHIN)
    except OSError:
        return ""
    with plain:
        return _tried(context, plain, host)


def in_words(error: ssl.SSLError) -> str:
    """What OpenSSL has against a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).lower().replace("_", " ")


def _tried(context: ssl.SSLContext, plain: socket.socket, host: str) -> str:
    try:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            secure.sendall(_HELLO)
            secure.settimeout(REFUSED_WITHIN)
            while secure.recv(4096):
                continue
    except TimeoutError:
        return ""
    except ssl.SSLCertVerificationError as error:
        return f"the member's certificate isn't one for us: {in_words(error)}"
    except ssl.SSLError as error:
        return f"the member refuses ours: {in_words(error)}"
    except OSError:
        return "the member ended the handshake"
    return "the member ended the connection after the handshake: our certificate isn't one for it"
