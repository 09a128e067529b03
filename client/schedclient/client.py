"""The client of a cluster: one object for all its members.

async with Client("host:7420,host2:7420") as c:
    run = await c.submit(shell={"argv": ["/bin/echo", "hi"]})
    run = await c.runs.wait(run)
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Self, Unpack

from google.protobuf.duration_pb2 import Duration

from schedclient.calls.base import new_key
from schedclient.calls.batches import Batches
from schedclient.calls.calendars import Calendars
from schedclient.calls.cluster import Access, Audit, ClusterCalls, Workers
from schedclient.calls.dead_letters import DeadLetters, Redrives
from schedclient.calls.jobs import Jobs
from schedclient.calls.pools import Pools
from schedclient.calls.runs import Runs
from schedclient.calls.specs import Form, Length, Work, job_message, length_message
from schedclient.errors import ApiError
from schedclient.transport.transport import Settings, Transport, split_endpoints
from schedclient.values.reading import value_of
from schedclient.values.runs import Run
from schedkit.net.channel import TLS
from schedproto.v1 import job_pb2
from schedproto.v1 import run_service_pb2 as wire


class Client:
    """A client of a cluster. Use it as an async context manager, in one event loop.

    Any number of concurrent calls is fine: 128 run at a time, the others wait in a queue. The wait
    counts towards their timeout.

    Args:
        endpoints: `host:port` of members, in a comma list or a sequence; some may be down.
        tls: the files of mutual TLS; None: plaintext.
        token: sent with each call; rejected for a plaintext connection that leaves the host.
        namespace: the namespace of every name in every call.
        timeout: default timeout of a call, in seconds.
        connect_timeout: timeout of the first connection, to any endpoint, in seconds (default:
            the timeout of the call).

    Raises:
        Misconfigured: an argument isn't valid.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "127.0.0.1:7420",
        *,
        tls: TLS | None = None,
        token: str | None = None,
        namespace: str = "default",
        timeout: float | timedelta = 20.0,
        connect_timeout: float | None = None,
    ) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.namespace = namespace
        self._transport = Transport(
            Settings(split_endpoints(endpoints), tls, token, seconds, connect_timeout)
        )
        self.jobs = Jobs(self._transport, namespace)
        self.runs = Runs(self._transport, namespace)
        self.calendars = Calendars(self._transport, namespace)
        self.pools = Pools(self._transport, namespace)
        self.cluster = ClusterCalls(self._transport)
        self.workers = Workers(self._transport)
        self.audit = Audit(self._transport)
        self.access = Access(self._transport)
        self.dead_letters = DeadLetters(self._transport, namespace)
        self.redrives = Redrives(self._transport, namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def submit(
        self,
        /,
        spec: Form | job_pb2.Job | None = None,
        *,
        name: str = "",
        delay: Length | None = None,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        **work: Unpack[Work],
    ) -> Run:
        """Run one-time work without a stored job, from keywords, a mapping or a wire message.

        A key is created if none is given, so a retry after a lost answer starts no second run.
        """
        written, length = work if spec is None else spec, length_message(delay, "delay")
        request = self._submit_request(written, name, length, idempotency_key)
        return value_of(Run, await self._transport.call(request, deadline))

    async def submit_many(
        self,
        specs: Iterable[Form | job_pb2.Job],
        *,
        name: str = "",
        delay: Length | None = None,
        calls: int = 2,
        deadline: float | None = None,
    ) -> list[Run | ApiError]:
        """Submit many specs. Return an answer for each, in order. A rejected one doesn't affect the
        others.

        A call has hundreds of specs, and `calls` run at a time; each has the `deadline`. Every
        submit has its own key.
        """
        try:
            length = length_message(delay, "delay")
        except ApiError as error:
            return [error for _ in specs]

        def request(spec: Form | job_pb2.Job) -> wire.SubmitRunRequest:
            return self._submit_request(spec, name, length, None)

        make = Batches(self._transport, wire.BatchSubmitRunsRequest, Run, "run", deadline)
        return await make.ask(specs, request, calls)

    def _submit_request(
        self, spec: Form | job_pb2.Job, name: str, delay: Duration | None, key: str | None
    ) -> wire.SubmitRunRequest:
        written = job_message(spec)
        return wire.SubmitRunRequest(
            namespace=written.namespace or self.namespace,
            name=name,
            spec=written,
            delay=delay,
            idempotency_key=key or new_key(),
        )
