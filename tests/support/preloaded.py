"""Start the processes of pytest-xdist by fork from one process that has imported all tests.

    pytest-xdist ── exec ──▶ entrance ── its streams ──▶ preloaded process ── fork ──▶ test process

The imports take most of the time of a collection. A test process still collects the tests itself,
with its own configuration. A file that can't be imported isn't kept: each test process tries again,
and reports the error.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from execnet import XSpec

from support import fork_server, postgres

_TESTS = Path(__file__).parent.parent
_NAMES = ("stdin", "stdout", "stderr")
_SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from support import preloaded
preloaded.serve(int(sys.argv[2]), sys.argv[3:])
"""


@contextlib.contextmanager
def started(folder: Path, arguments: Sequence[str], specs: Sequence[XSpec]) -> Iterator[None]:
    """Run a preloaded process, from which the test processes of these specs are forked.

    `arguments`: those of pytest, which name the tests.
    """
    address = os.fspath(folder / "preloaded")
    with postgres.copied_server() as variables:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(len(specs))
            given = [os.fspath(_TESTS), str(listener.fileno()), *map(str, arguments)]
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE, *given],
                env={**os.environ, **variables},
                pass_fds=[listener.fileno()],
            )
        for spec in specs:
            entrance = Path(__file__).with_name("entrance.py")
            command = [sys.executable, "-I", "-S", os.fspath(entrance), address]
            spec.python = shlex.join(command)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def serve(descriptor: int, arguments: Sequence[str]) -> NoReturn:
    """Import the tests; fork a test process for each connection."""
    listener = socket.socket(fileno=descriptor)
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
        pytest.main(
            [*arguments, "--collect-only", "-qq", "--numprocesses=0", "-p", "no:cacheprovider"],
            plugins=[_Broken()],
        )
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        _, streams, *_ = socket.recv_fds(connection, 16, len(_NAMES))
        if os.fork() == 0:
            listener.close()
            _run(streams)
        connection.close()
        for stream in streams:
            os.close(stream)


class _Broken:
    """Forgets files that can't be imported. Pytest leaves such a module half imported, and would
    take it for a file with fewer tests.
    """

    def pytest_exception_interact(self, node: pytest.Collector | pytest.Item) -> None:
        path = os.fspath(node.path)
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == path:
                del sys.modules[name]


def _run(streams: Sequence[int]) -> NoReturn:
    """Execute what execnet sends, as its `python -c 'exec(eval(sys.stdin.readline()))'` does."""
    for standard, (stream, name) in enumerate(zip(streams, _NAMES, strict=True)):
        os.dup2(stream, standard)
        os.close(stream)
        opened = os.fdopen(standard, "w" if standard else "r", 1, closefd=False)
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    sys.argv[:] = ["-c"]
    main = {"__name__": "__main__"}
    fork_server.end_process(
        fork_server.exit_code_of(lambda: exec(eval(sys.stdin.readline()), main))
    )
