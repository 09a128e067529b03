"""Call a gRPC method in JSON, without its proto: server reflection describes it.

    symbol ──▶ its file ──▶ what that imports, one after the other ──▶ a pool ──▶ Method
                                                 JSON ──request──▶ bytes ──answer──▶ JSON

Invariants
- Each call has its own pool: the types of one server are unknown to others, and dropped after the
  call.
- At most MAX_FILES files of MAX_BYTES together are accepted, and no names that would turn a small
  answer into a huge text.
- Expensive processing of foreign data (pools, JSON) runs in a thread, not on the loop.
"""

import asyncio
import graphlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from schedkit.records import dataclass

MAX_FILES: Final = 1_000
MOST_ENTRIES: Final = 10_000
"""Files in all answers: some servers send all dependencies again with each file."""
MAX_BYTES: Final = 1024 * 1024
"""Enough for an API of thousands of messages. A pool is built without interruption; this size takes
a tenth of a second.
"""
_PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
"""The same service under two names: newer servers know only the first, older ones the second."""

_WITHOUT_METHOD: Final = "implement JobHandler.Run in the server and remove `method` from the job"
LONGEST_NAME: Final = 200
"""Characters of a field or value name. An answer may contain a name for every two bytes: longer
names would make its JSON huge.
"""
_DEEPEST: Final = 100
"""Levels of a message, as in protobuf."""

Metadata = Sequence[tuple[str, str]]


class MethodNotFound(Exception):
    """The server has no such service or method, or no reflection."""


class MethodNotCallable(Exception):
    """The method can't be called this way; a retry fails, too."""


def _faulty(how: str) -> MethodNotCallable:
    return MethodNotCallable(f"the reflection service of the job's gRPC server {how}")


@dataclass(frozen=True, slots=True)
class ReflectedMethod:
    path: str
    pool: DescriptorPool
    descriptor: MethodDescriptor

    def request(self, text: str) -> bytes:
        """Return the request message for this JSON; an empty message for an empty text. Blocks.
        Raises MethodNotCallable: the JSON doesn't fit the type.
        """
        message: Any = GetMessageClass(self.descriptor.input_type)()
        try:
            json_format.Parse(
                text or "{}", message, descriptor_pool=self.pool, max_recursion_depth=_DEEPEST
            )
            return bytes(message.SerializeToString())
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as wrong:
            kind = self.descriptor.input_type.full_name
            raise MethodNotCallable(
                f"the payload isn't a valid {kind} message: {' '.join(str(wrong).split())};"
                " correct the payload"
            ) from None

    def json_of_answer(self, data: bytes) -> str | None:
        """Return the JSON of an answer; None if it isn't valid. Blocks."""
        message: Any = GetMessageClass(self.descriptor.output_type)()
        try:
            message.ParseFromString(data)
            return json_format.MessageToJson(message, indent=None, descriptor_pool=self.pool)
        except (DecodeError, json_format.Error, ValueError, TypeError, RecursionError):
            return None


async def find(
    channel: grpc.aio.Channel, service: str, method: str, metadata: Metadata, timeout: float
) -> ReflectedMethod:
    """Ask the server for a method. `timeout` in seconds.

    Raises:
        MethodNotFound: the server doesn't have the method.
        MethodNotCallable: the method streams, or its description is invalid or too large.
        AioRpcError: the call failed.
    """
    files = await _files(channel, service, metadata, timeout)
    pool = await asyncio.to_thread(_pool, files)
    try:
        found = pool.FindServiceByName(service).methods_by_name.get(method)
    except KeyError:
        raise MethodNotFound(
            f"the job's gRPC server has no service {service}: correct the field `method` of the job"
        ) from None
    if found is None:
        raise MethodNotFound(
            f"service {service} has no method {method}: correct the field `method` of the job"
        )
    if found.client_streaming or found.server_streaming:
        raise MethodNotCallable(
            f"the method {service}/{method} can't be called: it is a streaming method, and"
            " only unary methods are supported: name another method in the job"
        )
    return ReflectedMethod(f"/{service}/{method}", pool, found)


async def _files(
    channel: grpc.aio.Channel, symbol: str, metadata: Metadata, timeout: float
) -> Mapping[str, FileDescriptorProto]:
    for path in _PATHS:
        try:
            return await _Asking(channel.unary_unary(path), metadata, timeout).files(symbol)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
    raise MethodNotFound(
        "the job's gRPC server has no reflection service, which the field `method` of the job"
        f" requires: turn reflection on in the server, or {_WITHOUT_METHOD}"
    )


class _Asking:
    """Reads files from one server.

    Reflection is a stream of requests and answers. Here each request has its own stream, which
    equals a unary call on the wire and ends with the server's status.
    """

    def __init__(self, call: Any, metadata: Metadata, timeout: float) -> None:
        self._call, self._metadata, self._timeout = call, metadata, timeout
        self._bytes = self._entries = 0
        self._found: dict[str, FileDescriptorProto] = {}

    async def files(self, symbol: str) -> Mapping[str, FileDescriptorProto]:
        await self._ask(file_containing_symbol=symbol)
        while missing := self._missing():
            await self._ask(file_by_filename=missing)
            if missing not in self._found:
                raise _faulty(f"didn't send a required file, {missing[:200]!r}: correct the server")
        return self._found

    def _missing(self) -> str | None:
        wanted = (name for file in self._found.values() for name in file.dependency)
        return next((name for name in wanted if name not in self._found), None)

    async def _ask(self, **what: str) -> None:
        request = reflection_pb2.ServerReflectionRequest(**what).SerializeToString()
        data = await self._call(request, metadata=self._metadata, timeout=self._timeout)
        answer = reflection_pb2.ServerReflectionResponse()
        try:
            answer.ParseFromString(data or b"")
        except DecodeError:
            raise _faulty("sent an invalid answer: correct the server") from None
        if answer.HasField("error_response"):
            (asked,) = what.values()
            error = answer.error_response.error_message
            raise MethodNotFound(
                f"the reflection service of the job's gRPC server doesn't know {asked[:200]}:"
                f" {error}; correct the field `method` of the job"
            )
        self._add_files(answer.file_descriptor_response.file_descriptor_proto)

    def _add_files(self, files: Sequence[bytes]) -> None:
        self._entries += len(files)
        if self._entries > MOST_ENTRIES:
            raise _faulty(
                f"sent {self._entries:,} files, but at most {MOST_ENTRIES:,} are allowed:"
                f" {_WITHOUT_METHOD}"
            )
        for data in files:
            try:
                file = FileDescriptorProto.FromString(data)
            except DecodeError:
                raise _faulty("sent an invalid .proto file: correct the server") from None
            if not file.name:
                raise _faulty("sent a .proto file without a name: correct the server")
            if any(len(name) > LONGEST_NAME for name in _names(file)):
                raise _faulty(
                    f"sent the file {file.name[:200]}, in which a name has more than"
                    f" {LONGEST_NAME} characters: use shorter names in the server"
                )
            self._bytes += len(data)
            self._found.setdefault(file.name, file)
            if self._bytes > MAX_BYTES or len(self._found) > MAX_FILES:
                raise _faulty(
                    f"sent more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes, the highest"
                    f" allowed numbers: {_WITHOUT_METHOD}"
                )


def _names(file: FileDescriptorProto) -> Iterator[str]:
    """Return the names that occur in the JSON of its messages."""
    enums, messages = [*file.enum_type], [*file.message_type]
    while messages:
        message = messages.pop()
        messages += message.nested_type
        enums += message.enum_type
        for field in message.field:
            yield from (field.name, field.json_name)
    for enum in enums:
        yield from (value.name for value in enum.value)


def _pool(files: Mapping[str, FileDescriptorProto]) -> DescriptorPool:
    pool = DescriptorPool()
    dependencies = {name: list(file.dependency) for name, file in files.items()}
    try:
        for name in graphlib.TopologicalSorter(dependencies).static_order():
            pool.AddSerializedFile(files[name].SerializeToString())
    except (TypeError, ValueError, KeyError, RecursionError) as wrong:
        raise _faulty(f"sent invalid message types: {wrong}; correct the server") from None
    return pool
