"""The keepalive thread's own connection to etcd: no event loop, one call.

Like `connection`, but synchronous, and for a request that is safe to repeat: the endpoints are
tried one after the other, within one deadline.
"""

import random
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from schedd.core.cluster.coordination import LeaseId
from schedd.core.events import Emit, discard
from schedd.etcd import wire_pb2 as wire
from schedd.etcd.access import EtcdAccess, Login, metadata
from schedd.etcd.codec import AUTHENTICATE, LEASE_KEEP_ALIVE, EtcdMethod
from schedd.etcd.connection import Ring
from schedd.etcd.errors import EtcdCallFailed, EtcdRemedy, LoginBackoff, RightsOff, judge
from schedd.etcd.last_answer import Silence
from schedkit.clock import boottime
from schedkit.errors import ScheddError, Unavailable

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class Lifeline:
    """Sender of keepalives. Used by one thread; another thread may call `close`. `deadline`:
    seconds for each keepalive. `silence` records which were answered. `emit` receives the duration
    of each.
    """

    def __init__(
        self, access: EtcdAccess, silence: Silence, *, deadline: float, emit: Emit = discard
    ) -> None:
        self._silence = silence
        self._emit = emit
        self._access = access
        self._deadline = deadline
        self._ring = Ring(len(access.targets), start=random.randrange(len(access.targets)))
        self._channels: dict[int, grpc.Channel] = {}
        self._token: str | None = None
        self._backoff = LoginBackoff()

    def keepalive(self, lease: LeaseId) -> int:
        """Renew the lease; return the seconds granted, 0 if the lease has expired. Raises
        Unavailable: no endpoint answered within the deadline. Raises AccessDenied: etcd doesn't
        accept the user.
        """
        with self._silence.around(LEASE_KEEP_ALIVE.name, self._emit) as began:
            return self._anywhere(lease, began + self._deadline)

    def _anywhere(self, lease: LeaseId, ends: float) -> int:
        last: ScheddError | None = None
        for position in self._ring.round():
            try:
                return self._keepalive(position, lease, ends)
            except EtcdCallFailed as failed:
                last = failed.failure.error
                if failed.failure.distrust:
                    self._leave_endpoint(position)
                if failed.failure.remedy is not EtcdRemedy.ELSEWHERE:
                    raise last from failed.__cause__
        raise last or Unavailable(
            "etcd: none of the servers in etcd.endpoints answers; check that etcd is running"
        )

    def close(self) -> None:
        """Close the connections; a keepalive in progress fails."""
        for channel in list(self._channels.values()):
            channel.close()

    def _leave_endpoint(self, position: int) -> None:
        self._ring.failed(position)
        if self._access.tls is not None and (channel := self._channels.pop(position, None)):
            channel.close()  # the next one reads the certificates again

    def _keepalive(self, position: int, lease: LeaseId, ends: float) -> int:
        request = wire.LeaseKeepAliveRequest(id=lease)
        if (login := self._access.login) is not None and self._token is None:
            self._token = self._authenticate(login, position, ends)
        try:
            return self._send(position, LEASE_KEEP_ALIVE, request, ends).ttl
        except EtcdCallFailed as failed:
            if login is None or failed.failure.remedy is not EtcdRemedy.TOKEN:
                raise
        self._token = self._authenticate(login, position, ends)
        return self._send(position, LEASE_KEEP_ALIVE, request, ends).ttl

    def _authenticate(self, login: Login, position: int, ends: float) -> str:
        self._backoff.check(login)
        request = wire.AuthenticateRequest(name=login.user, password=login.password)
        self._token = None
        try:
            return self._send(position, AUTHENTICATE, request, ends).token
        except EtcdCallFailed as failed:
            if not isinstance(failed.failure.error, RightsOff):
                self._backoff.failed(failed, login)
                raise
            return ""

    def _send(
        self, position: int, method: EtcdMethod[RequestT, ReplyT], request: RequestT, ends: float
    ) -> ReplyT:
        stub = self._channel(position).unary_unary(method.path, **method.form)
        try:
            left = max(0.001, ends - boottime())
            reply: ReplyT = stub(request, timeout=left, metadata=metadata(self._token))
        except grpc.RpcError as error:
            call: Any = error  # also the call, if it was started
            failure = judge(call.code(), call.details() or "", writes=False, access=self._access)
            raise EtcdCallFailed(failure) from error
        return reply

    def _channel(self, position: int) -> grpc.Channel:
        if position not in self._channels:
            self._channels[position] = self._access.open_channel(grpc, position)
        return self._channels[position]
