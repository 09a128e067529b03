"""etcd's methods: path, answer, and whether a request sent twice could do harm.

The paths are etcd's, bound by hand to our own messages. A keepalive is a stream on the wire, but
one request and one answer of a stream are the very bytes of a unary call, so it is bound as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.etcd import wire_pb2 as wire

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    """One call of etcd. `writes`: applied twice, it would not be as if applied once."""

    path: str
    encode: Callable[[RequestT], bytes]
    decode: Callable[[bytes], ReplyT]
    writes: bool = False


RANGE: Final = Method(
    "/etcdserverpb.KV/Range", wire.RangeRequest.SerializeToString, wire.RangeResponse.FromString
)
TXN: Final = Method(
    "/etcdserverpb.KV/Txn",
    wire.TxnRequest.SerializeToString,
    wire.TxnResponse.FromString,
    writes=True,
)
COMPACT: Final = Method(
    "/etcdserverpb.KV/Compact",
    wire.CompactionRequest.SerializeToString,
    wire.CompactionResponse.FromString,
    writes=True,
)
WATCH: Final = Method(
    "/etcdserverpb.Watch/Watch", wire.WatchRequest.SerializeToString, wire.WatchResponse.FromString
)
LEASE_GRANT: Final = Method(
    "/etcdserverpb.Lease/LeaseGrant",
    wire.LeaseGrantRequest.SerializeToString,
    wire.LeaseGrantResponse.FromString,
    writes=True,
)
LEASE_REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke",
    wire.LeaseRevokeRequest.SerializeToString,
    wire.LeaseRevokeResponse.FromString,
)
LEASE_KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    wire.LeaseKeepAliveRequest.SerializeToString,
    wire.LeaseKeepAliveResponse.FromString,
)
LEASE_TIME_TO_LIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive",
    wire.LeaseTimeToLiveRequest.SerializeToString,
    wire.LeaseTimeToLiveResponse.FromString,
)
STATUS: Final = Method(
    "/etcdserverpb.Maintenance/Status",
    wire.StatusRequest.SerializeToString,
    wire.StatusResponse.FromString,
)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate",
    wire.AuthenticateRequest.SerializeToString,
    wire.AuthenticateResponse.FromString,
)
