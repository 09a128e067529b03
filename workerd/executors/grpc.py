"""Make one unary gRPC call; its status decides whether the job succeeded.

    endpoint ──targets──▶ checked addresses ──▶ a channel of this attempt
    no method:  JobHandler.Run            RunRequest ──▶ RunResponse
    a method:   reflection ──▶ Method     payload, JSON ──▶ answer, JSON

Invariants
- Only permitted addresses are connected to (targets): the name is resolved once, here. The channel
  gets addresses only, and the name only as the authority.
- A channel lasts as long as its attempt, and shares no connection with another.
- A call through `egress.proxy` uses CONNECT, and the proxy resolves the name.
- The environment has no influence: no proxy variables, no service config of DNS.
- Nothing is sent twice, nothing is decompressed, no message of more than 4 MiB is accepted.
- Connection errors before the request is sent are distinguished from errors of the service: a
  resource limit of this worker returns the run.
- The answer of `JobHandler.Run` is kept up to the limit of results, of other methods up to 64 KiB.
"""

import asyncio
import base64
import ipaddress
import ssl
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from schedkit.clock import utcnow
from schedkit.egress.policy import Egress, Proxy
from schedkit.egress.targets import ForbiddenTarget, Targets
from schedkit.net.channel import MAX_MESSAGE
from schedkit.net.endpoints import Endpoint, endpoint_of, method_of, reserved_metadata
from schedkit.protojson import standard
from schedproto.v1 import job_handler_pb2
from workerd import messages
from workerd.core.capture import KEEP, Piece
from workerd.core.outcome import (
    MAX_ERROR,
    AttemptOutcome,
    AttemptVerdict,
    Cause,
    Content,
    OutcomeReason,
    failed,
    given_back,
)
from workerd.core.resource_limits import at_limit, limit_in, need_descriptor
from workerd.executors import reflection
from workerd.executors.base import (
    ActionExecutor,
    AttemptStart,
    Stop,
    outcome_of_stop,
    until_stopped,
)
from workerd.executors.handlers.large_json import LARGE, beside, is_json
from workerd.executors.reflection import Metadata, MethodNotCallable, MethodNotFound

# The host's CA certificates. gRPC's core has its own list, which these replace.


def system_roots() -> bytes | None:
    """Return all CA certificates, PEM, as OpenSSL finds them (also `SSL_CERT_FILE`); None: none.
    Raises OSError: they can't be read.
    """
    where = ssl.get_default_verify_paths()
    if where.cafile:
        return Path(where.cafile).read_bytes()
    hashed = sorted(Path(where.capath).glob("*.[0-9]")) if where.capath else []
    return b"\n".join(each.read_bytes() for each in hashed) or None


CONNECT_WITHIN: Final = 10.0
MAX_RETRY_DELAY: Final = 86_400.0
"""Maximum retry delay that a target may request, in seconds."""

_ALMOST: Final = timedelta(milliseconds=100)
"""DEADLINE_EXCEEDED within this time of the deadline is a timeout: clocks differ by that much."""
_RUN: Final = "/schedd.v1.JobHandler/Run"
_DETAILS: Final = "grpc-status-details-bin"
_GZIP: Final = b"\x1f\x8b"
"""No message begins with these bytes. Some servers compress without being asked."""
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_WITHIN * 1000)),  # limits one connection attempt
    ("grpc.enable_http_proxy", 0),
    ("grpc.address_http_proxy_enabled_addresses", ""),  # the other kind of proxy
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # No compression: gRPC 1.76 decompresses without a limit, 1.85 within the limit.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
)


class NoAnswer(Exception):
    """The status is OK without a message, which only a streaming server may do."""


class GrpcExecutor(ActionExecutor):
    def __init__(self, egress: Egress) -> None:
        self._targets = Targets(egress.allowed(), "workerd.toml")
        self._proxy = egress.via()
        self._credentials: grpc.ChannelCredentials | None = None
        self._idle: grpc.aio.Channel | None = None
        """An unconnected channel that keeps gRPC's core initialized. The core shuts down with the
        last channel, and aborts the process if it restarts without free descriptors.
        """

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        return await until_stopped(self._call(attempt), attempt, stop)

    async def close(self) -> None:
        if self._idle is not None:
            await self._idle.close()

    async def _call(self, attempt: AttemptStart) -> AttemptOutcome:
        action = attempt.common.grpc
        try:
            need_descriptor()  # gRPC's core would fail without one
            endpoint = endpoint_of(action.endpoint)
            channel = await self._open(endpoint)
        except (ForbiddenTarget, ValueError) as error:
            return failed(str(error), OutcomeReason.DONT_RETRY)
        except OSError as error:
            if at_limit(error):
                return given_back(error.strerror or str(error))
            return failed(f"{type(error).__name__}: {error}", OutcomeReason.EXCEPTION)
        async with channel:
            try:
                if action.method:
                    return await _any_method(channel, attempt, *method_of(action.method))
                return await _job_handler(channel, attempt)
            except NoAnswer as error:
                return failed(str(error), OutcomeReason.EXCEPTION)
            except MethodNotFound as error:
                return _status(grpc.StatusCode.UNIMPLEMENTED, str(error))
            except (MethodNotCallable, ValueError) as error:
                return failed(str(error), OutcomeReason.DONT_RETRY)
            except grpc.aio.AioRpcError as error:
                return _outcome_of_error(error, channel.get_state(), attempt)

    async def _open(self, endpoint: Endpoint) -> grpc.aio.Channel:
        self._idle = self._idle or grpc.aio.insecure_channel("ipv4:127.0.0.1:1")
        options = [*_OPTIONS, ("grpc.default_authority", endpoint.authority)]
        if self._proxy is not None and self._proxy.takes(endpoint.host, endpoint.port):
            self._targets.check_literal(endpoint.host, endpoint.port)
            target = f"dns:///{self._proxy.address}"
            options += _through(self._proxy, endpoint)
        else:
            addresses = await self._targets.addresses(endpoint.host, endpoint.port)
            target = target_of(addresses, endpoint.port)
        if not endpoint.tls:
            return grpc.aio.insecure_channel(target, options=options)
        if self._credentials is None:
            roots = await asyncio.to_thread(system_roots)
            self._credentials = grpc.ssl_channel_credentials(roots)
        return grpc.aio.secure_channel(target, self._credentials, options=options)


def _through(proxy: Proxy, endpoint: Endpoint) -> Sequence[tuple[str, str]]:
    options = [("grpc.http_connect_server", endpoint.authority)]
    if proxy.credentials:
        basic = base64.b64encode(proxy.credentials.encode()).decode()
        options.append(("grpc.http_connect_headers", f"Proxy-Authorization:Basic {basic}"))
    return options


def target_of(addresses: Sequence[str], port: int) -> str:
    """Return the channel target for these addresses, tried in this order. A target has one address
    family, so IPv4 addresses among IPv6 are mapped to IPv6.
    """
    read = [ipaddress.ip_address(each) for each in addresses]
    if all(each.version == 4 for each in read):
        return "ipv4:" + ",".join(f"{each}:{port}" for each in read)
    as_v6 = (f"::ffff:{each}" if each.version == 4 else str(each) for each in read)
    return "ipv6:" + ",".join(f"[{each}]:{port}" for each in as_v6)


async def _job_handler(channel: grpc.aio.Channel, attempt: AttemptStart) -> AttemptOutcome:
    data = await _unary(channel, _RUN, run_request(attempt).SerializeToString(), attempt)
    answer = job_handler_pb2.RunResponse()
    try:
        answer.ParseFromString(data)
    except DecodeError:
        return failed(
            "the target's answer isn't a valid RunResponse message", OutcomeReason.EXCEPTION
        )
    if len(data) > LARGE:
        return await beside(partial(judged, answer, attempt.most_result))
    return judged(answer, attempt.most_result)


def run_request(attempt: AttemptStart) -> job_handler_pb2.RunRequest:
    given = attempt.assignment
    request = job_handler_pb2.RunRequest(
        namespace=given.namespace,
        job=given.job,
        run_id=given.key.run_id,
        attempt=given.attempt,
        fencing_token=given.key.fencing_token,
        scheduled_at=given.key.scheduled_at,
        idempotency_key=given.key.run_id,
        worker=attempt.worker,
        traceparent=given.traceparent,
        payload=given.payload if given.HasField("payload") else None,
    )
    request.deadline.FromDatetime(attempt.deadline)
    return request


def judged(answer: job_handler_pb2.RunResponse, most: int = KEEP) -> AttemptOutcome:
    if answer.dont_retry:
        error = answer.error or "the target failed, and requested no retry (dont_retry)"
        return failed(error, OutcomeReason.DONT_RETRY)
    if answer.error:
        wait = _retry_delay(answer.retry_after) if answer.HasField("retry_after") else None
        error = answer.error[:MAX_ERROR]
        return failed(error, OutcomeReason.EXCEPTION, retry_after=wait)
    if answer.result.WhichOneof("kind") is None:
        return AttemptOutcome(AttemptVerdict.SUCCEEDED)
    said = answer.result.WhichOneof("kind") == "json"
    return _succeeded(messages.payload_bytes(answer.result), json=said, most=most)


async def _any_method(
    channel: grpc.aio.Channel, attempt: AttemptStart, service: str, name: str
) -> AttemptOutcome:
    given = attempt.batch.payload(attempt.place)
    if given.WhichOneof("kind") == "raw":
        raise MethodNotCallable(
            "the payload must be JSON if the job has `method`, but the payload is bytes: give"
            " JSON, or remove `method` from the job"
        )
    metadata = metadata_of(attempt)
    method = await reflection.find(channel, service, name, metadata, _remaining_seconds(attempt))
    request = await asyncio.to_thread(method.request, given.json)
    data = await _unary(channel, method.path, request, attempt)
    if len(data) > KEEP:
        note = f"the answer isn't kept: it has {len(data):,} bytes, at most {KEEP:,} are kept\n"
        return AttemptOutcome(
            AttemptVerdict.SUCCEEDED, output=(_piece(note.encode(), stderr=True),)
        )
    text = await asyncio.to_thread(method.json_of_answer, data)
    if text is None:
        return _succeeded(data, json=False, most=attempt.most_result)
    return await beside(partial(_succeeded, text.encode(), json=True, most=attempt.most_result))


async def _unary(
    channel: grpc.aio.Channel, path: str, request: bytes, attempt: AttemptStart
) -> bytes:
    call: Any = channel.unary_unary(path)
    answer: bytes | None = await call(
        request, metadata=metadata_of(attempt), timeout=_remaining_seconds(attempt)
    )
    if answer is None:
        raise NoAnswer(
            "the gRPC server ended the call with OK, but sent no answer: correct the server"
        )
    if answer.startswith(_GZIP):
        raise MethodNotCallable(
            "the gRPC server compressed its answer with gzip, although the call didn't permit"
            " it: turn compression off in the server"
        )
    return answer


def metadata_of(attempt: AttemptStart) -> Metadata:
    """Return the attempt's metadata, percent-encoded to ASCII, and the job's own metadata."""
    metadata = {
        f"schedd-{name.replace('_', '-')}": quote(value, safe=_PLAIN)
        for name, value in attempt.facts().items()
        if value
    }
    if attempt.traceparent:
        metadata["traceparent"] = attempt.traceparent
    own = attempt.common.grpc.metadata.items()
    metadata |= {name.lower(): value for name, value in own if not reserved_metadata(name)}
    return tuple(metadata.items())


def _remaining_seconds(attempt: AttemptStart) -> float:
    return max((attempt.deadline - utcnow()).total_seconds(), 0.001)


def _outcome_of_error(
    error: grpc.aio.AioRpcError, state: grpc.ChannelConnectivity, attempt: AttemptStart
) -> AttemptOutcome:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and utcnow() >= attempt.deadline - _ALMOST:
        return outcome_of_stop(attempt.batch, Cause.TIMEOUT)
    unreached = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    if code is grpc.StatusCode.UNAVAILABLE and unreached and (limit := limit_in(details)):
        return given_back(limit)
    return _status(code, details, _retry_after(error))


def _status(
    code: grpc.StatusCode, details: str, retry_after: timedelta | None = None
) -> AttemptOutcome:
    return failed(
        f"{code.name}: {details}".removesuffix(": "),
        OutcomeReason.GRPC_STATUS,
        exit_code=code.value[0],
        retry_after=retry_after,
    )


def _retry_after(error: grpc.aio.AioRpcError) -> timedelta | None:
    """Return the delay in the status's `google.rpc.RetryInfo`; None if missing or invalid."""
    for name, value in error.trailing_metadata() or ():
        if name != _DETAILS or not isinstance(value, bytes):
            continue
        info = RetryInfo()
        try:
            if any(detail.Unpack(info) for detail in Status.FromString(value).details):
                return _retry_delay(info.retry_delay)
        except DecodeError:
            return None
    return None


def _retry_delay(duration: Duration) -> timedelta:
    seconds = duration.seconds + duration.nanos / 1e9
    return timedelta(seconds=min(max(seconds, 0.0), MAX_RETRY_DELAY))


def _succeeded(data: bytes, *, json: bool, most: int) -> AttemptOutcome:
    if len(data) > most:
        return AttemptOutcome(AttemptVerdict.SUCCEEDED, output=(_piece(data[:KEEP]),))
    try:
        return AttemptOutcome(
            AttemptVerdict.SUCCEEDED, result=Content(data, json=json and _is_json(data))
        )
    except standard.TooDeep as error:
        return failed(f"response {error}", OutcomeReason.DONT_RETRY)


def _is_json(data: bytes) -> bool:
    """Return whether this is JSON without numbers or characters that JSON readers reject."""
    if not is_json(data):
        return False  # kept as bytes, though the target says JSON
    try:
        standard.loads(data, any_width=True)
    except standard.TooDeep:
        raise
    except ValueError:
        return False
    return True


def _piece(data: bytes, *, stderr: bool = False) -> Piece:
    return Piece(stderr=stderr, data=data, offset=0, at=utcnow())
