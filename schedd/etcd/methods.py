"""etcd's methods: path, reply, and whether sending a request twice could do harm.

The paths are etcd's, bound by hand to our own messages. A keepalive is a stream on the wire. A
stream of one request and one reply has the same bytes as a unary call, so it is bound as one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.etcd import wire_pb2 as wire

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class EtcdMethod(Generic[RequestT, ReplyT]):
    """A method of etcd. `writes`: applying the request twice differs from applying it once."""

    path: str
    encode: Callable[[RequestT], bytes]
    decode: Callable[[bytes], ReplyT]
    writes: bool = False

    @property
    def name(self) -> str:
        """Last part of the path, such as `Range`."""
        return self.path.rpartition("/")[2]


def _method(
    path: str, request: type[RequestT], reply: type[ReplyT], *, writes: bool = False
) -> EtcdMethod[RequestT, ReplyT]:
    return EtcdMethod(path, request.SerializeToString, reply.FromString, writes)


RANGE: Final = _method("/etcdserverpb.KV/Range", wire.RangeRequest, wire.RangeResponse)
TXN: Final = _method("/etcdserverpb.KV/Txn", wire.TxnRequest, wire.TxnResponse, writes=True)
COMPACT: Final = _method(
    "/etcdserverpb.KV/Compact", wire.CompactionRequest, wire.CompactionResponse, writes=True
)
WATCH: Final = _method("/etcdserverpb.Watch/Watch", wire.WatchRequest, wire.WatchResponse)
LEASE_GRANT: Final = _method(
    "/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantRequest, wire.LeaseGrantResponse, writes=True
)
LEASE_REVOKE: Final = _method(
    "/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeRequest, wire.LeaseRevokeResponse
)
LEASE_KEEP_ALIVE: Final = _method(
    "/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse
)
LEASE_TIME_TO_LIVE: Final = _method(
    "/etcdserverpb.Lease/LeaseTimeToLive",
    wire.LeaseTimeToLiveRequest,
    wire.LeaseTimeToLiveResponse,
)
STATUS: Final = _method("/etcdserverpb.Maintenance/Status", wire.StatusRequest, wire.StatusResponse)
AUTHENTICATE: Final = _method(
    "/etcdserverpb.Auth/Authenticate", wire.AuthenticateRequest, wire.AuthenticateResponse
)
