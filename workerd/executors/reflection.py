"""A method that nobody here has a proto of: found by asking its server, and spoken to in JSON.

    symbol ──▶ its file ──▶ what that imports, one after the other ──▶ a pool ──▶ Method
                                                 JSON ──request──▶ bytes ──answer──▶ JSON

Invariants
- Each call has a pool of its own: no server's types are known to another's, or outlive the call.
- At most MAX_FILES files of MAX_BYTES together are taken, whatever a server says, and no names that
  make a small answer a huge text.
- What takes long for what others sent (pools, JSON) is reckoned in a thread, not on the loop.
"""

from __future__ import annotations

import asyncio
import graphlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

MAX_FILES: Final = 1_000
MOST_ENTRIES: Final = 10_000
"""Files in all its answers: some servers send with each file all that it stands on, again."""
MAX_BYTES: Final = 1024 * 1024
"""Those of a whole API of thousands of messages. A pool is made in one go that nothing interrupts:
of so much in a tenth of a second.
"""
_PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
"""The same messages under two names: newer servers know only the first, older ones the second."""

LONGEST_NAME: Final = 200
"""Characters of a field or value. An answer is written out with one for each two bytes: longer ones
would make a huge text of it.
"""
_DEEPEST: Final = 100
"""Levels of a message; those that protobuf reads, too."""

Metadata = Sequence[tuple[str, str]]


class NotThere(Exception):
    """The server is there, and hasn't got that: no such service or method, or no reflection."""


class MethodNotCallable(Exception):
    """This method can't be called so, now or another time."""


@dataclass(frozen=True, slots=True)
class ReflectedMethod:
    """One unary method, and what it takes and gives."""

    path: str
    pool: DescriptorPool
    descriptor: MethodDescriptor

    async def request(self, text: str) -> bytes:
        """The message that this JSON is; none is an empty one.

        Raises:
            Unfit: it isn't one, and why.
        """
        return await asyncio.to_thread(self._request, text)

    async def answer(self, data: bytes) -> str | None:
        """The JSON of an answer; None if it has none."""
        return await asyncio.to_thread(self._answer, data)

    def _request(self, text: str) -> bytes:
        message: Any = GetMessageClass(self.descriptor.input_type)()
        try:
            json_format.Parse(
                text or "{}", message, descriptor_pool=self.pool, max_recursion_depth=_DEEPEST
            )
            return bytes(message.SerializeToString())
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as wrong:
            kind = self.descriptor.input_type.full_name
            raise MethodNotCallable(
                f"the payload is no {kind}: {' '.join(str(wrong).split())}"
            ) from None

    def _answer(self, data: bytes) -> str | None:
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
        NotThere: it hasn't got it.
        Unfit: it streams; or what is said of it is nonsense, or too much.
        AioRpcError: the call failed.
    """
    files = await _files(channel, service, metadata, timeout)
    pool = await asyncio.to_thread(_pool, files)
    try:
        found = pool.FindServiceByName(service).methods_by_name.get(method)
    except KeyError:
        raise NotThere(f"there is no service {service}") from None
    if found is None:
        raise NotThere(f"{service} has no method {method}")
    if found.client_streaming or found.server_streaming:
        raise MethodNotCallable(f"{service}/{method} streams; only unary methods can be called")
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
    raise NotThere("the server has no reflection, by which alone a method is found")


class _Asking:
    """One server, asked for files.

    Reflection is a stream of questions and answers; here each question has a stream of its own,
    which is on the wire what a unary call is, and ends with the status that the server gave.
    """

    def __init__(self, call: Any, metadata: Metadata, timeout: float) -> None:
        self._call, self._metadata, self._timeout = call, metadata, timeout
        self._bytes = self._entries = 0
        self._found: dict[str, FileDescriptorProto] = {}

    async def files(self, symbol: str) -> Mapping[str, FileDescriptorProto]:
        """The file of a symbol, and all that it stands on, by name."""
        await self._ask(file_containing_symbol=symbol)
        while missing := self._missing():
            await self._ask(file_by_filename=missing)
            if missing not in self._found:
                raise MethodNotCallable(
                    f"the server's reflection has another file for {missing[:200]!r}"
                )
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
            raise MethodNotCallable("the server's reflection sends what is no answer") from None
        if answer.HasField("error_response"):
            (asked,) = what.values()
            told = answer.error_response.error_message
            raise NotThere(f"the server's reflection knows no {asked[:200]}: {told}")
        self._take(answer.file_descriptor_response.file_descriptor_proto)

    def _take(self, files: Sequence[bytes]) -> None:
        self._entries += len(files)
        if self._entries > MOST_ENTRIES:
            raise MethodNotCallable(
                f"the server's reflection sends too much: {self._entries:,} files in all"
            )
        for data in files:
            try:
                file = FileDescriptorProto.FromString(data)
            except DecodeError:
                raise MethodNotCallable("the server's reflection sends what is no proto") from None
            if not file.name:
                raise MethodNotCallable("the server's reflection sends a file without a name")
            if any(len(name) > LONGEST_NAME for name in _names(file)):
                raise MethodNotCallable(
                    f"{file.name[:200]} has names of more than {LONGEST_NAME} characters"
                )
            self._bytes += len(data)
            self._found.setdefault(file.name, file)
            if self._bytes > MAX_BYTES or len(self._found) > MAX_FILES:
                most = f"{MAX_FILES:,} files, {MAX_BYTES:,} bytes"
                raise MethodNotCallable(f"the server's reflection sends too much: at most {most}")


def _names(file: FileDescriptorProto) -> Iterator[str]:
    """What stands in the JSON of its messages."""
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
    stands_on = {name: list(file.dependency) for name, file in files.items()}
    try:
        for name in graphlib.TopologicalSorter(stands_on).static_order():
            pool.AddSerializedFile(files[name].SerializeToString())
    except (TypeError, ValueError, KeyError, RecursionError) as wrong:
        raise MethodNotCallable(f"the server's reflection can't be read: {wrong}") from None
    return pool
