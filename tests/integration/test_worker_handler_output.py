"""Output and logs of handlers, and effects of their modules on the process that imports them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import Stream
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import cluster

STDOUT, STDERR = run_pb2.LogPiece.STREAM_STDOUT, run_pb2.LogPiece.STREAM_STDERR

SAYS = """
import asyncio, logging, sys, threading
from schedclient import handler

log = logging.getLogger("shop")

def say(ctx):
    print("printed", ctx.run_id)
    sys.stdout.buffer.write(b"as bytes\\n")
    log.info("logged %s", ctx.run_id)
    ctx.log.warning("by ctx %s", ctx.run_id)

@handler
async def on_the_loop(payload, ctx):
    say(ctx)
    await asyncio.create_task(later())
    await asyncio.to_thread(print, "from a thread")

async def later():
    await asyncio.sleep(0.01)
    print("from a task")

@handler
def in_a_thread(payload, ctx):
    say(ctx)
    print("from a task")
    print("from a thread")

@handler(mode="process")
def in_a_process(payload, ctx):
    in_a_thread(payload, ctx)

@handler
def much(payload, ctx):
    for number in range(3000):
        print("x" * 9_999)

@handler
async def broken(payload, ctx):
    print("before")
    raise RuntimeError("oh no")
"""

HOSTILE = """
import asyncio, atexit, locale, logging, logging.config, os, signal, sys, threading, warnings
from schedclient import handler

class Strange(logging.LogRecord):
    def getMessage(self):
        return "hijacked"

logging.basicConfig(force=True, level=logging.CRITICAL, format="hijacked %(message)s")
logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
logging.setLogRecordFactory(Strange)
logging.setLoggerClass(type("Odd", (logging.Logger,), {}))
logging.disable(logging.CRITICAL)
logging.raiseExceptions = False
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.set_wakeup_fd(-1)
os.chdir("/")
os.umask(0o777)
locale.setlocale(locale.LC_ALL, "C")
os.environ.clear()
sys.setrecursionlimit(200)
sys.setswitchinterval(5)
warnings.simplefilter("error")
threading.excepthook = None
sys.excepthook = None
atexit.register(lambda: 1 / 0)
asyncio.set_event_loop_policy(None)
sys.stdout.close()
sys.stderr = open(os.devnull, "w")
os.close(1)

@handler
async def fine(payload, ctx):
    sys.stdout = None
    logging.shutdown()
    logging.root.handlers.clear()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:
        return "fine"
"""

TOUCHY = """
from schedclient import handler

class Touchy(Exception):
    def __str__(self):
        raise RuntimeError("don't")
    __repr__ = __str__
    @property
    def __notes__(self):
        raise KeyError("don't")

class Meta(type):
    __name__ = property(lambda self: 1 / 0)
    def __repr__(self):
        return 1 / 0

class Odd(Exception, metaclass=Meta):
    pass

class Leaving(BaseException):
    __str__ = Touchy.__str__

def fail(payload):
    if payload == "group":
        raise ExceptionGroup("several", [Touchy(), ValueError("one")])
    if payload == "unpicklable":
        error = ValueError("with a lock")
        error.lock = __import__("threading").Lock()
        raise error
    raise {"touchy": Touchy, "odd": Odd, "leaving": Leaving}[payload]()

class Result(dict):
    def __len__(self):
        raise RuntimeError("don't count me")
    keys = items = __iter__ = __len__

def answer(payload):
    return Result(a=1) if payload == "result" else fail(payload)

@handler
async def on_the_loop(payload, ctx):
    return answer(payload)

@handler
def in_a_thread(payload, ctx):
    return answer(payload)

@handler(mode="process")
def in_a_process(payload, ctx):
    return answer(payload)
"""


RECONFIGURES = """
import logging, logging.config
from schedclient import handler

def reconfigure():
    logging.basicConfig(force=True, level=logging.CRITICAL, format="hijacked %(message)s")
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    logging.disable(logging.CRITICAL)

reconfigure()

@handler
async def on_the_loop(payload, ctx):
    reconfigure()

@handler
def in_a_thread(payload, ctx):
    reconfigure()
"""


async def call(stream: Stream, name: str, payload: object = None) -> pb.Result:
    action = job_pb2.PythonAction(handler=name)
    key = await stream.assign(python=action, payload=json.dumps(payload))
    return await stream.result_of(key)


def written(result: pb.Result, stream: int) -> str:
    return b"".join(each.data for each in result.output if each.stream == stream).decode()


KINDS = ("on_the_loop", "in_a_thread", "in_a_process")


async def test_output_and_logs_of_each_kind_of_handler_are_in_the_log_of_its_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with cluster(tmp_path, environ=environ, handlers="says") as (member, worker):
        stream = await member.attached()
        for kind in KINDS:
            result = await call(stream, kind)
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, result.error
            run = result.key.run_id
            lines = written(result, STDOUT).splitlines()
            wanted = [f"printed {run}", "as bytes", "from a task", "from a thread"]
            assert sorted(lines) == sorted(wanted), kind
            errors = written(result, STDERR)
            assert re.search(rf"INFO    shop: logged {run}\n", errors), kind
            assert re.search(rf"WARNING by ctx {run}\n", errors), kind
            assert run not in worker.log.read_text()


async def test_a_traceback_follows_the_handlers_output_and_much_output_is_cut(
    tmp_path: Path,
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with cluster(tmp_path, environ=environ, handlers="says") as (member, _):
        stream = await member.attached()
        broken = await call(stream, "broken")
        assert written(broken, STDOUT) == "before\n"
        assert "RuntimeError: oh no" in written(broken, STDERR)
        much = await call(stream, "much")
        assert much.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert len(written(much, STDOUT)) == 128 * 1024
        assert sum(each.omitted for each in much.output) == 30_000_000 - 128 * 1024


async def test_the_worker_continues_whatever_a_module_does_to_its_process(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    # A variable of the interpreter has the worker executed, not forked: its end is tested, too.
    environ = {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": ""}
    async with cluster(tmp_path, environ=environ, handlers="hostile") as (member, worker):
        stream = await member.attached()
        for _ in range(2):
            result = await call(stream, "fine")
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, result.error
            assert result.result.json == '"fine"'
        shell = job_pb2.ShellAction(script="umask; kill -0 $$")
        program = await stream.result_of(await stream.assign(shell=shell))
        assert written(program, STDOUT) != "0777\n"
        await stream.acknowledge(result.key)
        worker.signal(signal.SIGHUP)
        await wait_until_async(
            lambda: "SIGHUP: reloading" in worker.log.read_text(), WAIT_TIMEOUT, "the reload"
        )
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        log = worker.log.read_text()
        assert re.search(
            r"\d\d:\d\d:\d\d\.\d{3}Z INFO    workerd\.stream\.streams: attached to", log
        )
        assert "draining: SIGTERM" in log
        assert "hijacked" not in log


@pytest.mark.parametrize("form", ["text", "json"])
async def test_the_workers_log_keeps_its_format_when_modules_and_handlers_reconfigure_logging(
    tmp_path: Path, form: str
) -> None:
    (tmp_path / "reconfigures.py").write_text(RECONFIGURES)
    environ, config = {"PYTHONPATH": str(tmp_path)}, f'log_format = "{form}"'
    async with cluster(tmp_path, environ=environ, config=config, handlers="reconfigures") as (
        member,
        worker,
    ):
        stream = await member.attached()
        for kind in ("on_the_loop", "in_a_thread"):
            result = await call(stream, kind)
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, result.error
            await stream.acknowledge(result.key)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        lines = worker.log.read_text().splitlines()
    messages = {"attached to", "draining: SIGTERM"}
    for line in lines:
        if form == "json":
            said = json.loads(line)
            assert {"at", "level", "service", "logger", "message"} <= said.keys()
        else:
            assert re.match(r"\S+T\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +[\w.]+: ", line), line
        messages -= {each for each in messages if each in line}
    assert messages == set(), "lines of before and after the handlers"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_that_raises_in_str_fails_its_run_with_its_class(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "touchy.py").write_text(TOUCHY)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with cluster(tmp_path, environ=environ, handlers="touchy") as (member, _):
        stream = await member.attached()
        for payload, said in (
            ("touchy", "Touchy: <no text: __str__ raised RuntimeError>"),
            ("odd", "Odd: "),
            ("leaving", "Leaving: <no text: __str__ raised RuntimeError>"),
            ("group", "ExceptionGroup: several (2 sub-exceptions)"),
            ("unpicklable", "ValueError: with a lock"),
        ):
            result = await call(stream, kind, payload)
            assert (result.reason, result.error) == (common_pb2.REASON_EXCEPTION, said), payload
            assert "touchy.py" in written(result, STDERR), payload
        result = await call(stream, kind, "result")
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert "don't count me" in result.error
