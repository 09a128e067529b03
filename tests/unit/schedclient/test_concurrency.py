"""Clients over forks, several event loops, signals and other concurrency libraries."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from schedclient import Client, DeadlineExceeded, Misconfigured, SyncClient
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Scripted
from support.wait import wait_until

RUN = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED)
ENDED = run_pb2.Run(run_id="other", state=common_pb2.RUN_STATE_SUCCEEDED)
RUNNING = run_pb2.Run(run_id="other", state=common_pb2.RUN_STATE_RUNNING)


@pytest.fixture
def member() -> Iterator[Scripted]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = asyncio.run_coroutine_threadsafe(Scripted.start(), loop).result()
    scripted.say("GetRun", RUN)
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def program(member: Scripted, text: str, **env: str) -> str:
    """Return the output of a program in its own process, which must exit with 0."""
    start = f"""
import os, sys, threading, time
from schedclient import Client, SyncClient, ScheddError
address = {member.address!r}
client = SyncClient(address, timeout=5)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            print(work(), flush=True)
        except ScheddError as error:
            print(getattr(error, "reason", ""), error, flush=True)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_client_works_on_both_sides_of_a_fork(member: Scripted):
    output = program(
        member,
        """
        client.runs.get("r")
        child(lambda: client.runs.get("r").run_id)
        child(lambda: client.runs.get("r").run_id)
        print(client.runs.get("r").run_id)
        """,
    )
    assert output.split() == ["r", "r", "r"]


@pytest.mark.slow
def test_a_new_client_works_in_a_child_of_a_process_that_made_calls(member: Scripted):
    output = program(
        member,
        """
        try:
            client.runs.get(7)
        except TypeError as error:
            kept = error
        try:
            client.jobs.get("unscripted")
        except ScheddError as error:
            kept = error  # its traceback refers to the call
        child(lambda: SyncClient(client.wrapped._transport.settings.endpoints).runs.get("r").run_id)
        """,
    )
    assert output.split() == ["r"]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["inherited", "SyncClient(address, timeout=1)"])
def test_a_timeout_holds_in_a_child_of_multiprocessing(which: str, member: Scripted):
    member.say("ListAttempts", lambda _: asyncio.Event().wait())
    output = program(
        member,
        f"""
        from multiprocessing import get_context
        from schedclient import DeadlineExceeded

        inherited = SyncClient(address, timeout=1)
        inherited.runs.get("r")

        def work():
            one = {which}
            print(one.runs.get("r").run_id)
            begun = time.monotonic()
            try:
                one.runs.attempts("r")
            except DeadlineExceeded:
                print("late" if time.monotonic() - begun > 6 else "in time")

        process = get_context("fork").Process(target=work)
        process.start()
        process.join(30)
        assert process.exitcode == 0, process.exitcode
        """,
        PYTHONUNBUFFERED="1",
    )
    assert output.split("\n") == ["r", "in time", ""]


@pytest.mark.slow
def test_a_fork_waits_for_the_calls_of_other_threads(member: Scripted):
    output = program(
        member,
        """
        import asyncio

        def calls():
            while not done:
                client.runs.get("r")

        async def calls_in_a_loop():
            client = Client(address, timeout=5)
            while not done:
                await client.runs.get("r")

        done = []
        threads = [threading.Thread(target=calls) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(calls_in_a_loop())))
        for thread in threads:
            thread.start()
        for _ in range(20):
            child(lambda: client.runs.get("r").run_id)
        done.append(1)
        for thread in threads:
            thread.join()
        """,
    )
    assert output.split() == ["r"] * 20


@pytest.mark.slow
def test_a_stream_continues_over_a_fork_and_the_child_makes_calls(member: Scripted):
    def end(request: runs.GetRunRequest) -> run_pb2.Run:
        if request.run_id == "other":
            member.say("WatchRuns", [runs.RunEvent(run=ENDED)])
        return RUN

    member.say("GetRun", end)
    member.say("WatchRuns", [runs.RunEvent(run=RUNNING), asyncio.Event()])
    output = program(
        member,
        """
        events = client.runs.watch("other")
        print(next(events).state)
        states = []
        thread = threading.Thread(target=lambda: states.append(next(events).state))
        thread.start()
        child(lambda: client.runs.get("r").run_id)
        child(lambda: client.runs.get("r").run_id)
        client.runs.get("other")
        child(lambda: client.runs.get("r").run_id)
        thread.join()
        print(*states)
        """,
        PYTHONUNBUFFERED="1",
    )
    assert output.split() == ["RUNNING", "r", "r", "r", "SUCCEEDED"]


@pytest.mark.slow
def test_a_child_forked_during_a_call_is_refused_with_the_reason(member: Scripted):
    member.say("ListAttempts", lambda _: asyncio.Event().wait())
    output = program(
        member,
        """
        threading.Thread(target=lambda: client.runs.attempts("r"), daemon=True).start()
        time.sleep(0.5)
        child(lambda: client.runs.get("r").run_id)
        print(client.runs.get("r").run_id)
        os._exit(0)
        """,
        GRPC_ENABLE_FORK_SUPPORT="0",
        PYTHONUNBUFFERED="1",
    )
    refused, parent = output.splitlines()
    assert refused.startswith("FORKED process ")
    assert "gRPC can't be used in this process" in refused
    assert parent == "r"


def test_an_async_client_works_in_one_event_loop_after_another(member: Scripted):
    client = Client(member.address, timeout=5)

    async def read() -> str:
        return (await client.runs.get("r")).run_id

    assert [asyncio.run(read()) for _ in range(3)] == ["r"] * 3


def test_an_async_client_works_in_two_event_loops_at_once(member: Scripted):
    client = Client(member.address, timeout=5)
    run_ids = []

    async def read() -> None:
        run_ids.extend([(await client.runs.get("r")).run_id for _ in range(20)])

    threads = [threading.Thread(target=lambda: asyncio.run(read())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert run_ids == ["r"] * 60


def test_an_async_client_without_an_event_loop_names_the_remedy(member: Scripted):
    call = Client(member.address).runs.get("r")
    with pytest.raises(Misconfigured, match="needs a running asyncio event loop; with trio"):
        call.send(None)


async def test_a_blocking_client_works_inside_a_running_event_loop(member: Scripted):
    with SyncClient(member.address, timeout=5) as client:
        assert client.runs.get("r").run_id == "r"


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_client_refuses_to_be_pickled_with_a_sentence(kind: type):
    with pytest.raises(TypeError, match="pass its endpoints to the other process"):
        pickle.dumps(kind("127.0.0.1:1"))


@pytest.mark.parametrize(
    ("module", "fake"),
    [
        ("gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == "threading")),
        ("eventlet.patcher", SimpleNamespace(is_monkey_patched=lambda name: name == "thread")),
    ],
)
def test_patched_threads_are_refused_by_name(
    module: str, fake: object, member: Scripted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(
        Misconfigured, match=f"{module.partition('.')[0]} has replaced Python's threads"
    ):
        SyncClient(member.address).runs.get("r")


def test_a_signal_handler_that_raises_ends_the_wait(member: Scripted):
    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    member.say("GetRun", lambda _: asyncio.Event().wait())
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with SyncClient(member.address, timeout=30) as client:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(AlarmError):
                client.runs.get("r")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_thread_that_ended_is_replaced_by_the_next_call(member: Scripted):
    with SyncClient(member.address, timeout=5) as client:
        client.runs.get("r")
        loop, thread = client.loop._loop, client.loop._thread
        assert loop is not None
        assert thread is not None
        loop.call_soon_threadsafe(loop.stop)
        wait_until(lambda: not thread.is_alive(), 10, "the thread's end")
        assert client.runs.get("r").run_id == "r"


@pytest.mark.slow
def test_a_call_whose_thread_blocks_ends_with_a_sentence(member: Scripted):
    with SyncClient(member.address, timeout=5) as client:
        client.runs.get("r")
        assert client.loop._loop is not None
        freed = threading.Event()
        client.loop._loop.call_soon_threadsafe(freed.wait)
        begun = time.monotonic()
        try:
            with pytest.raises(DeadlineExceeded, match="thread hasn't responded for 5 s"):
                client.runs.get("r")
            assert time.monotonic() - begun < 15
        finally:
            freed.set()


@pytest.mark.slow
def test_calls_at_exit_work_and_calls_during_shutdown_end(member: Scripted):
    output = program(
        member,
        """
        import atexit, builtins
        client.runs.get("r")
        atexit.register(lambda: print(client.runs.get("r").run_id, flush=True))

        class Late:
            def __init__(self, client):
                self.client = client
            def __del__(self, write=os.write):
                try:
                    self.client.runs.get("r")
                    write(1, b"late\\n")
                except BaseException as error:
                    write(1, type(error).__name__.encode())

        sys.late = Late(client)
        """,
    )
    assert output.split()[0] == "r"
    assert len(output.split()) == 2
