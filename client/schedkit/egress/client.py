"""Send an HTTP request to a permitted target, directly or through the outgoing proxy.

    url ──check──▶ in no_proxy, or no proxy: resolve ──check──▶ connect to the checked address
                 └▶ proxy: the proxy resolves and connects

Invariants
- An error names its origin: the target, the proxy or the network. No error of the client library
  looks like an answer of the target.
- No redirect is followed, nothing is decompressed, no cookie, netrc or proxy variable is used.
"""

import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from schedkit.egress.policy import Egress, Proxy
from schedkit.egress.targets import ForbiddenTarget, Targets

CONNECT_WITHIN: Final = 10.0
"""Seconds for TCP and TLS."""
LONGEST_LINE: Final = 64 * 1024
"""Bytes of the status line, and of each header line."""
PROXY_PASSWORD: Final = 407
_SHOWN: Final = 200
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_SPACE: Final = re.compile(r"[\s^]+")


class CallFailed(Exception):
    """The request got no complete answer. The message states the cause."""

    def __init__(self, why: str, os_error: OSError | None = None) -> None:
        super().__init__(why)
        self.os_error = os_error
        """The error of the connection attempt, if that failed."""


class EgressClient:
    """Sends the requests of a daemon. Close it at the end."""

    def __init__(self, egress: Egress, file: str) -> None:
        """`file`: the configuration file that errors name, `workerd.toml`."""
        self._targets = Targets(egress.allowed(), file)
        self._proxy = egress.via()
        self._direct: aiohttp.ClientSession | None = None
        self._proxied: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def request(
        self, method: str, url: URL, *, headers: Mapping[str, str], data: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield its answer. Raises ForbiddenTarget: the target isn't permitted.
        CallFailed: there was no complete answer; also while the body is read.
        """
        self.check(url)
        proxy = self._proxy if self._proxy and self._proxy.takes(url.host or "", url.port) else None
        try:
            async with self._session(proxy).request(
                method,
                url,
                headers=headers,
                data=data,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
            ) as answer:
                if proxy and answer.status == PROXY_PASSWORD:  # targets never send this status
                    raise CallFailed(
                        f"the proxy rejected its user or password: {answer.status} {answer.reason};"
                        " correct egress.proxy"
                    )
                _watch(answer)
                yield answer
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ForbiddenTarget):
                raise error.os_error from None
            raise CallFailed(_why(error, url, proxy), error.os_error) from error
        except aiohttp.InvalidURL:
            raise
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise CallFailed(_why(error, url, proxy)) from error

    def check(self, url: URL) -> None:
        """Check the URL itself. Raises ForbiddenTarget: the target isn't permitted."""
        if url.scheme not in ("http", "https") or not url.host:
            raise ForbiddenTarget(f"the target {url} isn't an http or https URL")
        self._targets.check_literal(url.host, url.port or 0)

    async def close(self) -> None:
        for session in (self._direct, self._proxied):
            if session is not None:
                await session.close()

    def _session(self, proxy: Proxy | None) -> aiohttp.ClientSession:
        if proxy is None:
            self._direct = self._direct or _session(_CheckedAddresses(self._targets))
            return self._direct
        # The proxy's own address comes from the settings: it isn't checked.
        self._proxied = self._proxied or _session(None)
        return self._proxied


class _CheckedAddresses(AbstractResolver):
    """The client's resolver."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(**each) for each in await self._targets.resolve(host, port, family)]

    async def close(self) -> None:
        """Close nothing."""


def _session(resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=resolver or aiohttp.ThreadedResolver(),
            use_dns_cache=False,
            limit=0,
            force_close=True,
        ),
        # The caller's timeout limits the rest.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        trust_env=False,
    )


def _watch(answer: aiohttp.ClientResponse) -> None:
    """End the reading of a body that can't be parsed. aiohttp 3.14 closes such a connection, but
    lets the reader of the body wait forever, unless the bytes arrived together with the headers.
    """
    protocol = answer.connection.protocol if answer.connection else None
    closed = protocol.closed if protocol is not None else None

    def end(_closed: object) -> None:
        if not answer.content.is_eof() and answer.content.exception() is None:
            error = "a chunk of the body can't be parsed"
            answer.content.set_exception(aiohttp.ClientPayloadError(error))

    if closed is not None:
        closed.add_done_callback(end)


def _why(error: Exception, url: URL, proxy: Proxy | None) -> str:
    target = f"{url.host}:{url.port}"
    peer = f"the proxy {proxy.address}" if proxy else target
    match error:
        case aiohttp.ClientHttpProxyError():
            status = f"{error.status} {error.message}".strip()
            return f"the proxy rejected a connection to {target}: it answered {status}"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {target} is rejected: {_tls(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"the TLS handshake with {target} failed: {_tls(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            return (
                f"the name of {peer} can't be resolved: {error.os_error.strerror or error.os_error}"
            )
        case aiohttp.ClientConnectorError():
            return f"can't connect to {peer}: {error.os_error.strerror or error.os_error}"
        case aiohttp.ConnectionTimeoutError():
            return f"the connection to {peer} timed out after {CONNECT_WITHIN:.0f} s"
        case aiohttp.ClientResponseError():
            return _invalid(error)
        case aiohttp.ServerDisconnectedError():
            inside = not isinstance(error.message, str)
            when = "during" if inside else "before"
            return f"the target closed the connection {when} its answer"
        case aiohttp.ClientPayloadError():
            cause = error.__cause__
            what = _line(getattr(cause, "message", "") or str(cause or error))
            return f"the target's answer is incomplete or isn't valid HTTP: {what}"
        case OSError():
            return f"the connection to {peer} failed: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"


def _invalid(error: aiohttp.ClientResponseError) -> str:
    """Return the HTTP parser's error. The library sets status 400, which no target sent."""
    if "bytes when reading" in error.message:
        return f"the target sent a header line of more than {LONGEST_LINE:,} bytes"
    if "Too many headers" in error.message:
        return "the target sent more than 128 header lines"
    return f"the target's answer isn't valid HTTP: {_line(error.message)}"


def _tls(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    if reason in _NOT_TLS:
        return f"the target doesn't speak TLS on this port ({reason})"
    return reason or str(error)


def _line(text: str) -> str:
    words = _SPACE.sub(" ", text).strip()
    return words if len(words) <= _SHOWN else f"{words[: _SHOWN - 1]}…"
