"""HTTPS of schedd: TLS 1.2 or newer, reloaded certificates, optional client certificates.

    handshake ─▶ have the files changed? ─▶ the context of this handshake
              ├▶ the caller's certificate, if it shows one ─▶ scope[CERTIFICATE]
              └▶ the handshake fails: the caller sees its connection end, the log says why

Certificates that change on disk are used from the next handshake on.
"""

import logging
import ssl
from asyncio import BaseTransport, Protocol, get_running_loop
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS
from schedkit.net.handshake import in_words

log = logging.getLogger(__name__)

CERTIFICATE: Final = "schedd.certificate"
"""Key in the scope of a request: the caller's certificate as `pem` and `names` (kind, name)."""
HANDSHAKE_WITHIN: Final = 10.0
"""Seconds for the TLS handshake."""


def context_of(tls: TLS) -> ssl.SSLContext:
    """Return the context for a listener. Files that change take effect at the next handshake.
    Raises Misconfigured: a file can't be read, or the files don't belong together.
    """
    last = tls.read()
    first = current = _context(tls)

    def changed(handshake: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        nonlocal last, current
        try:
            if (now := tls.read()) != last:
                current, last = _context(tls), now
                log.info("certificate changed on disk: using %s from now on", tls.cert)
        except Misconfigured as error:
            log.warning("new certificate rejected, the old one stays in use: %s", error)
        handshake.context = current

    first.sni_callback = changed
    return first


def _context(tls: TLS) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(*tls.pair())
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(
            f"the certificate {tls.cert} can't be used with its key: {error}; give a matching pair"
        ) from error
    return context


class Handshake(SSLProtocol):
    """TLS of one accepted connection, as in asyncio, but failed handshakes are logged. `begun`:
    whether `inner` has received its connection. `lines`: the listener's log limit.
    """

    def __init__(
        self,
        inner: Protocol,
        begun: Callable[[], bool],
        context: ssl.SSLContext,
        lines: LimitedLine,
    ) -> None:
        super().__init__(
            get_running_loop(),
            inner,
            context,
            None,  # type: ignore[arg-type]  # no waiter
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_WITHIN,  # type: ignore[arg-type]
        )
        self._begun, self._lines = begun, lines
        self._peer: Any = None

    def connection_made(self, transport: BaseTransport) -> None:
        self._peer = transport.get_extra_info("peername")
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Log the failure if the handshake hadn't ended."""
        if isinstance(exc, ssl.SSLError) and not self._begun() and (refused := self._lines.due()):
            host, port = self._peer[:2] if self._peer else ("an unknown host", 0)
            log.warning(
                "TLS handshake with %s:%s failed: %s%s (%d handshakes failed since the last such"
                " line)",
                host,
                port,
                "its certificate: " if isinstance(exc, ssl.SSLCertVerificationError) else "",
                in_words(exc),
                refused,
            )
        super().connection_lost(exc)


def showing(app: ASGIApp, connection: ssl.SSLObject | None) -> ASGIApp:
    shown = None if connection is None else connection.getpeercert(binary_form=True)
    if connection is None or not shown:
        return app
    certificate: dict[str, Any] = {
        "pem": ssl.DER_cert_to_PEM_cert(shown).encode(),
        "names": (connection.getpeercert() or {}).get("subjectAltName", ()),
    }

    async def with_certificate(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFICATE: certificate}, receive, send)

    return with_certificate
