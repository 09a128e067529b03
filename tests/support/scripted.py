"""A real gRPC server that answers as a test tells it: for those who talk to a member.

    member = await Scripted.start()
    member.say("GetRun", Run(run_id="r"))          # from now on
    member.say("GetRun", Refusal("UNAVAILABLE"), Run())   # each once, the last one stays
    assert member.received("GetRun") == [GetRunRequest(run_id="r")]

An answer is a message, a list of messages (a stream), a Refusal, or a function of the request
(plain or async) that returns one of them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from schedkit.net.channel import SERVER_OPTIONS, listen
from schedproto.v1 import (
    auth_service_pb2,
    calendar_service_pb2,
    cluster_service_pb2,
    job_service_pb2,
    pool_service_pb2,
    run_service_pb2,
)

SERVICES = tuple(
    service
    for module in (
        job_service_pb2,
        run_service_pb2,
        cluster_service_pb2,
        calendar_service_pb2,
        pool_service_pb2,
        auth_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)


@dataclass(frozen=True)
class Refusal:
    """A status with the details that members send."""

    status: str
    message: str = "refused"
    reason: str = "SCRIPTED"
    remedy: str = ""
    fields: Sequence[tuple[str, str]] = ()
    bare: bool = False
    """No details at all, as a proxy would answer."""

    def details(self) -> bytes:
        """The serialised google.rpc.Status."""
        metadata = {"remedy": self.remedy} if self.remedy else {}
        details: list[Message] = [ErrorInfo(reason=self.reason, domain="schedd", metadata=metadata)]
        if self.fields:
            wrong = [BadRequest.FieldViolation(field=f, description=d) for f, d in self.fields]
            details.append(BadRequest(field_violations=wrong))
        status = Status(code=grpc.StatusCode[self.status].value[0], message=self.message)
        for detail in details:
            packed = Packed()
            packed.Pack(detail)
            status.details.append(packed)
        return status.SerializeToString()


@dataclass
class Scripted:
    """A member: its address, the requests it received, its answers."""

    address: str = ""
    requests: list[tuple[str, Message]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    script: dict[str, list[Any]] = field(default_factory=dict)
    server: Any = None

    @classmethod
    async def start(cls, address: str = "127.0.0.1:0") -> Scripted:
        """Listen on a free port of this host."""
        self = cls()
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        for service in SERVICES:
            handlers = {method.name: self._handler(method) for method in service.methods}
            generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
            self.server.add_generic_rpc_handlers((generic,))
        port = listen(self.server, address, None)
        self.address = f"127.0.0.1:{port}"
        await self.server.start()
        return self

    async def stop(self) -> None:
        """Go away at once."""
        await self.server.stop(grace=None)

    def say(self, call: str, *answers: Any) -> None:
        """Answer this call so: each answer once, the last one from then on."""
        self.script[call] = list(answers)

    def received(self, call: str) -> list[Any]:
        """The requests of this call so far."""
        return [request for name, request in self.requests if name == call]

    def _handler(self, method: Any) -> Any:
        request_class = message_factory.GetMessageClass(method.input_type)

        async def unary(request: Message, context: Any) -> Any:
            answer = await self._answer(method.name, request, context)
            return await answer if inspect.isawaitable(answer) else answer

        async def stream(request: Message, context: Any) -> AsyncIterator[Any]:
            answer = await self._answer(method.name, request, context)
            for piece in answer if isinstance(answer, list) else [answer]:
                if isinstance(piece, Refusal):
                    await self._refuse(piece, context)
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                    continue
                yield piece

        streaming = method.server_streaming
        make = (
            grpc.unary_stream_rpc_method_handler
            if streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            stream if streaming else unary,
            request_deserializer=request_class.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    async def _answer(self, call: str, request: Message, context: Any) -> Any:
        self.requests.append((call, request))
        self.metadata.append(dict(context.invocation_metadata()))
        answers = self.script.get(call) or [Refusal("UNIMPLEMENTED", f"{call} isn't built yet")]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer = answer(request)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, Refusal):
            await self._refuse(answer, context)
        return answer

    @staticmethod
    async def _refuse(refusal: Refusal, context: Any) -> None:
        details = () if refusal.bare else (("grpc-status-details-bin", refusal.details()),)
        await context.abort(grpc.StatusCode[refusal.status], refusal.message, details)
