"""Programs of the fork server behave as if they were executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import fork_server

PYTHON = [sys.executable, "-P", "-m"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_output_and_exit_code_are_those_of_an_executed_program() -> None:
    for command in ([*PYTHON, "schedctl", "--help"], [*PYTHON, "schedd", "no such command"]):
        executed = subprocess.run(command, capture_output=True, text=True, check=False)
        forked = fork_server.run(command)
        assert forked.returncode == executed.returncode
        assert (forked.stdout, forked.stderr) == (executed.stdout, executed.stderr)


def test_a_program_has_its_own_environment_and_folder_and_is_a_child_of_its_caller(
    tmp_path: Path,
) -> None:
    command = [*PYTHON, "workerd", "--endpoints=127.0.0.1:1", "--spool=here", "--name=w"]
    env = {**os.environ, "WORKERD_LISTEN__HTTP": "127.0.0.1:0"}
    process = fork_server.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("listens on port" in line for line in process.stderr)
        assert parent_of(process.pid) == os.getpid()
        assert (tmp_path / "here").is_dir()
    finally:
        process.terminate()
    assert process.wait() == 0


def test_an_environment_that_the_interpreter_reads_is_applied(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = fork_server.run([*PYTHON, "schedd", "--help"], env=env)
    assert shown.stdout.startswith("customized\n")
