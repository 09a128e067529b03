"""Translate our values to etcd's messages and back. Pure.

Invariants
- Keys of callers are relative to a root. Every message has the root, and keys outside it are never
  seen.
- A foreign key under our root may not be UTF-8. It survives decoding and encoding unchanged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.core.cluster.coordination import (
    Compare,
    CoordinationEntry,
    Delete,
    DeletePrefix,
    Get,
    LeaseId,
    Op,
    Put,
    Revision,
    TxnResult,
)
from schedd.etcd import wire_pb2 as wire
from schedkit.records import dataclass

# etcd's methods: path, reply, and whether sending a request twice could do harm.
#
# The paths are etcd's, bound by hand to our own messages. A keepalive is a stream on the wire. A
# stream of one request and one reply has the same bytes as a unary call, so it is bound as one.

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
        return self.path.rpartition("/")[2]

    @property
    def form(self) -> dict[str, Any]:
        return {"request_serializer": self.encode, "response_deserializer": self.decode}


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
STATUS: Final = _method("/etcdserverpb.Maintenance/Status", wire.StatusRequest, wire.StatusResponse)
AUTHENTICATE: Final = _method(
    "/etcdserverpb.Auth/Authenticate", wire.AuthenticateRequest, wire.AuthenticateResponse
)


def end_of(prefix: bytes) -> bytes:
    r"""Return the first key after all that start with `prefix`.

    If there is none, return `\0`: for etcd, "to the end".
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


@dataclass(frozen=True, slots=True)
class Codec:
    """Translator of keys relative to `root`, such as `schedd/`, and of messages with such keys."""

    root: str = ""

    def key(self, key: str) -> bytes:
        return (self.root + key).encode(errors="surrogateescape")

    def name(self, key: bytes) -> str:
        return key.decode(errors="surrogateescape").removeprefix(self.root)

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        start = self.key(prefix)
        return start or b"\0", end_of(start)

    def entry(self, kv: wire.KeyValue) -> CoordinationEntry:
        return CoordinationEntry(
            key=self.name(kv.key),
            value=kv.value,
            create_revision=Revision(kv.create_revision),
            mod_revision=Revision(kv.mod_revision),
            version=kv.version,
            lease=LeaseId(kv.lease),
        )

    def txn(
        self, compare: Iterable[Compare], then: Iterable[Op], otherwise: Iterable[Op]
    ) -> wire.TxnRequest:
        return wire.TxnRequest(
            compare=[self._compare(each) for each in compare],
            success=[self._op(each) for each in then],
            failure=[self._op(each) for each in otherwise],
        )

    def result(self, reply: wire.TxnResponse) -> TxnResult:
        return TxnResult(
            succeeded=reply.succeeded,
            revision=Revision(reply.header.revision),
            cluster_id=reply.header.cluster_id,
            read=self._read(reply.responses),
            deleted=sum(each.response_delete_range.deleted for each in reply.responses),
        )

    def _read(self, responses: Sequence[wire.ResponseOp]) -> tuple[CoordinationEntry | None, ...]:
        found = (each.response_range.kvs for each in responses if each.HasField("response_range"))
        return tuple(self.entry(kvs[0]) if kvs else None for kvs in found)

    def _compare(self, compare: Compare) -> wire.Compare:
        key, end = self.span(compare.key) if compare.of_prefix else (self.key(compare.key), b"")
        message = wire.Compare(
            key=key,
            range_end=end,
            target=wire.Compare.Target.Value(compare.field.name.removesuffix("_REVISION")),
            result=wire.Compare.Result.Value(compare.relation.name),
        )
        setattr(message, compare.field.value, compare.operand)
        return message

    def _op(self, op: Op) -> wire.RequestOp:
        match op:
            case Put(key, value, lease):
                put = wire.PutRequest(key=self.key(key), value=value, lease=lease)
                return wire.RequestOp(request_put=put)
            case Delete(key):
                one = wire.DeleteRangeRequest(key=self.key(key))
                return wire.RequestOp(request_delete_range=one)
            case DeletePrefix(prefix):
                start, end = self.span(prefix)
                many = wire.DeleteRangeRequest(key=start, range_end=end)
                return wire.RequestOp(request_delete_range=many)
            case Get(key):
                return wire.RequestOp(request_range=wire.RangeRequest(key=self.key(key)))
