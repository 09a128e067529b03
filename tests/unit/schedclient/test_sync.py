"""The blocking face: the same calls, the same types, on a thread of its own."""

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest

from schedclient import Client, Misconfigured, NotFound, SyncClient
from schedclient import sync as faces
from schedclient.calls.cluster import Access, Audit, ClusterCalls, Workers
from schedclient.calls.dead_letters import DeadLetters, Redrives
from schedclient.calls.jobs import Jobs
from schedclient.calls.pools import Pools
from schedclient.calls.runs import Runs
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal, Scripted
from support.wait import WAIT_TIMEOUT, wait_until

RUN = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED)


@pytest.fixture
def member() -> Iterator[Scripted]:
    """A member on a loop of its own, for tests that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = asyncio.run_coroutine_threadsafe(Scripted.start(), loop).result()
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    ("face", "wrapped"),
    [
        (faces.SyncJobs, Jobs),
        (faces.SyncRuns, Runs),
        (faces.SyncClusterCalls, ClusterCalls),
        (faces.SyncWorkers, Workers),
        (faces.SyncAudit, Audit),
        (faces.SyncAccess, Access),
        (faces.SyncDeadLetters, DeadLetters),
        (faces.SyncRedrives, Redrives),
        (faces.SyncPools, Pools),
        (faces.SyncClient, Client),
    ],
)
def test_every_call_is_there_with_its_signature_and_docstring(face: type, wrapped: type):
    calls = {
        name: member
        for name, member in vars(wrapped).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    assert calls
    for name, call in calls.items():
        blocking = vars(face).get(name)
        assert blocking is not None, f"{face.__name__} lacks {name}"
        if name != "close":
            actual, expected = inspect.signature(blocking), inspect.signature(call)
            assert actual.parameters == expected.parameters
            assert str(actual.return_annotation).removeprefix("Sync") == str(
                expected.return_annotation
            )
            assert blocking.__doc__ == call.__doc__


def test_the_same_nouns_are_on_both_clients():
    client = Client("127.0.0.1:1")
    with SyncClient("127.0.0.1:1") as blocking:
        nouns = {name for name in vars(client) if not name.startswith("_")}
        assert nouns <= set(vars(blocking))


def test_calls_lists_and_waits_block(member: Scripted):
    member.say("GetRun", RUN)
    member.say("SubmitRun", RUN)
    many = [runs.BatchSubmitRunsResponse.Result(run=RUN)] * 3
    member.say("BatchSubmitRuns", runs.BatchSubmitRunsResponse(results=many))
    member.say("WatchRuns", [runs.RunEvent(run=RUN)])
    member.say("ListRuns", runs.ListRunsResponse(runs=[RUN, RUN]))
    with SyncClient(member.address, timeout=5) as client:
        assert client.runs.get("r").run_id == "r"
        assert client.runs.wait(client.submit(shell={"argv": ["date"]})).succeeded
        assert [run.run_id for run in client.runs.list()] == ["r", "r"]
        assert len(client.submit_many([{"shell": {"argv": ["date"]}}] * 3)) == 3


def test_a_run_value_is_accepted_in_place_of_its_id(member: Scripted):
    member.say("GetRun", RUN)
    member.say("CancelRun", RUN)
    with SyncClient(member.address, timeout=5) as client:
        run = client.runs.cancel(client.runs.get("r"))
        assert client.runs.get(run) == run
        with pytest.raises(TypeError, match=r"expected the id of a run \(str\), or a Run"):
            client.runs.cancel(7)  # type: ignore[arg-type]


def test_errors_of_the_blocking_client_are_those_of_the_async_client(member: Scripted):
    member.say("GetRun", Refusal("NOT_FOUND"))
    with SyncClient(member.address, timeout=5) as client, pytest.raises(NotFound):
        client.runs.get("r")


def test_iteration_over_a_list_may_stop_early(member: Scripted):
    member.say("ListRuns", runs.ListRunsResponse(runs=[RUN] * 3))
    with SyncClient(member.address, timeout=5) as client:
        for run in client.runs.list():
            assert run.run_id == "r"
            break


def test_the_first_call_starts_the_thread_and_closing_ends_it(member: Scripted):
    def ours() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "schedclient"]

    before = ours()
    member.say("GetRun", RUN)
    client = SyncClient(member.address)
    assert ours() == before
    client.runs.get("r")
    [its_own] = [one for one in ours() if one not in before]
    client.close()
    wait_until(lambda: not its_own.is_alive(), WAIT_TIMEOUT, "the thread's end")
    assert its_own not in ours()


def test_threads_may_share_a_client(member: Scripted):
    member.say("GetRun", RUN)
    run_ids: list[str] = []
    with SyncClient(member.address, timeout=5) as client:
        threads = [
            threading.Thread(target=lambda: run_ids.append(client.runs.get("r").run_id))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert run_ids == ["r"] * 8


def test_a_closed_client_says_so():
    client = SyncClient("127.0.0.1:1")
    client.close()
    with pytest.raises(Misconfigured, match="closed"):
        client.runs.get("r")
