"""Start schedd's programs by fork from a process that has imported them.

    Popen([sys.executable, "-m", "workerd", "--config", file], env=env, stdout=log)

A program's imports cost up to 0.8 s of CPU time, and tests start several hundred programs. A forked
process has its own arguments, environment, folder and standard streams, and is a child of the
caller, as after exec. `/proc/PID/cmdline` is the server's.

    test process ── Popen ──▶ fork server ── fork, fork ──▶ program, child of the test process
                                                 schedctl dev ── fork ──▶ members, workers

Other commands are executed as usual. So are programs in an environment that the interpreter or a
library reads at its start (`_READ_AT_START`), because a fork would ignore that environment.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from schedctl.dev.servers.processes import DevProcess, find

PROGRAMS = frozenset({"schedd", "workerd", "schedctl", "schedctl.dev", "support.member_process"})

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GRPC_", "LC_", "LANG", "TZ", "SCHEDD_FAILPOINTS")
"""Beginnings of such variables; PYTHONPATH is applied after the fork."""
_IMPORTED = (
    "schedd.__main__",
    "schedd.app.recover",
    "schedd.app.daemon",
    "schedd.app.recover",
    "workerd.__main__",
    "workerd.app.daemon",
    # imported after the start:
    "alembic.command",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)
"""Modules of daemons; those of `schedctl` are found by a walk."""

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 20


@dataclass
class _Program:
    """How to become `python [-P] -m PROGRAM ARGUMENTS…`."""

    module: str
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    path: list[str]
    new_session: bool

    @classmethod
    def of(
        cls, args: Any, cwd: Any, env: Mapping[str, str] | None, *, new_session: bool
    ) -> _Program | None:
        """Return the program of a command; None if a fork isn't the same as an exec."""
        if isinstance(args, str | bytes | os.PathLike):
            return None
        python, *words = map(os.fsdecode, args)
        safe = words[:1] == ["-P"]
        option, module, *arguments = [*words[safe:], "", ""]
        if python != sys.executable or option != "-m" or module not in PROGRAMS:
            return None
        given = dict(os.environ if env is None else env)
        paths = [path for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
        customized = any((Path(path) / "sitecustomize.py").exists() for path in paths)
        if customized or _read_at_start(given) != _read_at_start(_environ):
            return None
        folder = os.fsdecode(cwd or Path.cwd())
        path = paths if safe else [folder, *paths]
        return cls(module, arguments[:-2], folder, given, path, new_session)

    def run(self) -> NoReturn:
        """Become this program, in a process that was just forked."""
        if self.new_session:
            os.setsid()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(self.cwd)
        os.environ.clear()
        os.environ.update(self.env)
        sys.path[:] = [*self.path, *_paths]
        sys.argv[:] = [self.module, *self.arguments]
        _reset_signals()
        starts_others = self.module == "schedctl.dev" or self.arguments[:1] == ["dev"]
        subprocess.Popen = _ForkingPopen if starts_others else _REAL  # type: ignore[misc]
        end_process(
            exit_code_of(lambda: runpy.run_module(self.module, run_name="__main__", alter_sys=True))
        )


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def _reset_signals() -> None:
    """Remove the handlers of the process that forked; ignored signals stay ignored."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_code_of(run: Callable[[], object]) -> int:
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def end_process(code: int) -> NoReturn:
    """End as the interpreter does, but without returning to frames of the process that forked."""
    with contextlib.suppress(BaseException):
        threading._shutdown()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = 120
    os._exit(code & 0xFF)


class _ForkedPopen(subprocess.Popen[Any]):
    """A `Popen` whose programs are forked by `_fork`."""

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: bool,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: int,
        start_new_session: bool,
        process_group: int = -1,
    ) -> None:
        plain = not (executable or preexec_fn or pass_fds or shell)
        same = (uid, gid, gids, umask, process_group) == (None, None, None, -1, -1)
        program = _Program.of(args, cwd, env, new_session=start_new_session)
        if program is None or not plain or not same:
            super()._execute_child(
                *(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo),
                *(creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite),
                *(restore_signals, gid, gids, uid, umask, start_new_session, process_group),
            )
            return
        given = ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))
        streams = [standard if stream == -1 else stream for stream, standard in given]
        try:
            self.pid = self._fork(program, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _fork(self, program: _Program, streams: Sequence[int]) -> int:
        raise NotImplementedError


class _ForkingPopen(_ForkedPopen):
    """In a forked program: fork the program itself."""

    def _fork(self, program: _Program, streams: Sequence[int]) -> int:
        pid = os.fork()
        if pid == 0:
            _run_with(streams, program)
        return pid


class Popen(_ForkedPopen):
    """In a test process: have the server fork."""

    def _fork(self, program: _Program, streams: Sequence[int]) -> int:
        return _server().fork(program, streams)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` with captured text."""
    pipe = subprocess.PIPE
    with Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, errors = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def spawn(command: Sequence[str], *, log: Path, cwd: Path) -> DevProcess:
    """Start a program in a new session, as `schedctl.dev.servers.processes.spawn`."""
    none = subprocess.DEVNULL
    with log.open("ab") as out:
        child = Popen(command, stdin=none, stdout=out, stderr=out, cwd=cwd, start_new_session=True)
    threading.Thread(target=child.wait, name=f"reap {child.pid}", daemon=True).start()
    process = find(child.pid)
    assert process is not None, f"{command} ended at once; log: {log}"
    return process


def _run_with(streams: Sequence[int], program: _Program) -> NoReturn:
    copies = [os.dup(stream) for stream in streams]  # a stream may be one of 0, 1, 2
    for standard, copy in enumerate(copies):
        os.dup2(copy, standard)
    program.run()


class _Server:
    """The server of this test process, which ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._libc = ctypes.CDLL(None, use_errno=True)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with served:
            self._process = _REAL(
                [sys.executable, "-P", __file__, str(served.fileno())],
                env=env,
                pass_fds=[served.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self, program: _Program, streams: Sequence[int]) -> int:
        """Return the pid of the program, a child of this process."""
        how = {"program": asdict(program), "nice": os.nice(0), "umask": _umask()}
        message = json.dumps(how).encode(errors="surrogateescape")
        with self._lock, self._adopting():
            socket.send_fds(self._channel, [message], list(streams))
            answer = self._channel.recv(32)
        assert answer, f"the fork server has ended: {self._process.poll()}"
        return int(answer)

    def ended(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.poll()

    @contextlib.contextmanager
    def _adopting(self) -> Iterator[None]:
        """Become the parent of orphans: the server's first fork ends and leaves the second one."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _umask() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("Umask:")[2].split()[0], 8)


def _server() -> _Server:
    global _started
    with _starting:
        if _started is not None and (status := _started.ended()) is not None:
            print(f"fork server {status=} has ended: starting another", file=sys.stderr)
            _started = None
        if _started is None:
            _started = _Server()
        return _started


_REAL = subprocess.Popen
_starting = threading.Lock()
_started: _Server | None = None
_environ = dict(os.environ)
_paths = list(sys.path)


def _import_all() -> None:
    # gRPC reads its variables when it is imported. Workers have this one, because gRPC's fork
    # handlers crash programs that are started by fork; no other program forks beside gRPC.
    os.environ[_FORK_SUPPORT] = "0"
    commands = importlib.import_module("schedctl")
    walk = pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
    for name in (*_IMPORTED, *(found.name for found in walk)):
        importlib.import_module(name)
        if name.endswith(".__main__"):
            del sys.modules[name]  # it runs under the name `__main__`
    del os.environ[_FORK_SUPPORT]


def _serve(channel: socket.socket) -> None:
    """Fork a program for each message, until the test process ends."""
    gc.disable()
    _import_all()
    gc.freeze()
    gc.enable()
    while True:
        message, streams, *_ = socket.recv_fds(channel, _MOST_BYTES, 3)
        if not message:
            return
        channel.send(str(_fork_twice(json.loads(message), streams)).encode())
        for stream in streams:
            os.close(stream)


def _fork_twice(how: dict[str, Any], streams: Sequence[int]) -> int:
    reading, writing = os.pipe()
    if (first := os.fork()) == 0:
        if (second := os.fork()) == 0:
            os.umask(how["umask"])
            os.nice(how["nice"] - os.nice(0))
            _run_with(streams, _Program(**how["program"]))
        os.write(writing, str(second).encode())
        os._exit(0)
    os.waitpid(first, 0)
    pid = int(os.read(reading, 32))
    os.close(reading)
    os.close(writing)
    return pid


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
