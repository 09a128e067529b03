"""Run a program, or a script for a named interpreter, in its own session.

    argv | interpreter + script        stdin: the payload, a text, or nothing
    clean environment + files of variables + the job's variables + SCHEDD_… (facts)

Invariants
- A job doesn't see the worker's environment.
- No shell reads `argv`.
- `child_process.stayed` handles stops.
"""

import contextlib
import errno
import os
import pwd
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from schedkit.egress.secrets import variables as variables_of
from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.outcome import AttemptOutcome, OutcomeReason, exited, failed, given_back, judged
from workerd.core.resource_limits import at_limit, need_descriptor
from workerd.executors.base import ActionExecutor, AttemptStart, Stop, bounds_of, outcome_of_stop
from workerd.executors.child_process import ChildProcess, stayed
from workerd.executors.scratch import Scratch
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.process.programs import Begun, Program

# Read the `#!` line of a script: its interpreter, and errors in it.
#
# Invariants
# - The line is read as the kernel reads it: a path, and the rest as one argument.

_MARK: Final = "#!"
_BLANKS: Final = re.compile(r"[ \t]+")
_MOST: Final = 4096
"""Bytes read of a file."""


def with_unix_lines(script: str) -> str:
    """Return a script without byte order mark, with LF for CRLF if its first line has CRLF."""
    script = script.removeprefix("\ufeff")
    if not script.partition("\n")[0].endswith("\r"):
        return script
    return script.replace("\r\n", "\n").removesuffix("\r")


def shebang_interpreter(script: str) -> Sequence[str]:
    """Return the interpreter of the `#!` line; empty without one. Raises ValueError: none named."""
    line = script.partition("\n")[0]
    if not line.startswith(_MARK):
        return ()
    words = _BLANKS.split(line.removeprefix(_MARK).strip(" \t"), maxsplit=1)
    if not words[0]:
        raise ValueError(
            f"the first line of the script, {line!r}, names no interpreter: write for example"
            " #!/bin/sh"
        )
    return words


def shebang_problem(program: Path) -> str:
    """Return why the `#!` line of an existing program fails; empty if it doesn't."""
    try:
        line = _first_line(program)
        if not line.startswith(_MARK):
            return ""
        found = shebang_interpreter(line)
    except (OSError, ValueError):
        return ""
    if not found or Path(found[0]).exists():
        return ""
    if line.endswith("\r"):
        name = found[0].rstrip("\r")
        return (
            f"the first line of {program} ends in a carriage return (CRLF), so its interpreter"
            f" {name!r} isn't found: convert the file to LF line ends"
        )
    return f"the interpreter {found[0]!r} in the first line of {program} doesn't exist"


def _first_line(program: Path) -> str:
    fd = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _MOST).partition(b"\n")[0].decode(errors="replace")
    finally:
        os.close(fd)


SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_INTERPRETER = ("/bin/sh",)
"""For scripts without `interpreter` and without a `#!` line."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""The exit codes of shells for programs that can't be started."""
LASTING: Final = frozenset({errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})
"""Errors of a program that a retry can't fix."""


class ShellExecutor(ActionExecutor):
    def __init__(
        self, supervisor: ProcessSupervisor, scratch: Path, secrets: Sequence[Path] = ()
    ) -> None:
        """`secrets`: directories in which jobs may name files of variables."""
        self._supervisor = supervisor
        self._scratch = scratch
        self._secrets = secrets
        self._account = _own_account()

    def objection(self, assignment: pb.Assignment) -> str:
        action = assignment.shell
        if not action.argv and not action.script:
            return "shell: argv or script is required"
        return self._supervisor.lacking(bounds_of(action.limits))

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        with contextlib.ExitStack() as scratch:
            child = self._started(attempt, scratch)
            if isinstance(child, AttemptOutcome):
                return child
            code, output = await stayed(child, attempt, stop)
        if stop.cause is not None:
            return outcome_of_stop(attempt.batch, stop.cause, output=output)
        action = attempt.common.shell
        outcome = exited(code, output, action.success_codes)
        return judged(outcome, bounds_of(action.limits), child.excess)

    def _started(
        self, attempt: AttemptStart, until_end: contextlib.ExitStack
    ) -> ChildProcess | AttemptOutcome:
        """Start the program; return it or the outcome. `until_end` removes its files."""
        action = attempt.common.shell
        try:
            user = _user(action.user) if action.user else None
            variables = variables_of(action.env_from, self._secrets)
            scratch = until_end.enter_context(Scratch(self._scratch, attempt.key, user))
            with _program(attempt, user, user or self._account, variables, scratch) as program:
                return ChildProcess(program, attempt.key, self._supervisor, attempt.find_tail())
        except FileNotFoundError as error:
            name = os.fsdecode(error.filename or "")
            why = shebang_problem(Path(name)) or f"{error.strerror}: {name}"
            return _not_started(why, OutcomeReason.DONT_RETRY, NOT_FOUND)
        except ValueError as error:
            return _not_started(str(error))
        except OSError as error:
            about = f": {error.filename}" if error.filename else ""
            detail = f"{error.strerror or error}{about}"
            if at_limit(error):
                return given_back(detail, began=isinstance(error, Begun))
            lasting = error.errno in LASTING
            return _not_started(
                detail, OutcomeReason.DONT_RETRY if lasting else OutcomeReason.EXIT_CODE
            )


@contextlib.contextmanager
def _program(
    attempt: AttemptStart,
    user: pwd.struct_passwd | None,
    account: pwd.struct_passwd,
    variables: Mapping[str, str],
    scratch: Scratch,
) -> Iterator[Program]:
    action = attempt.common.shell
    payload = scratch.write("payload", attempt.payload)
    argv = [*action.argv]
    if action.script:
        text = with_unix_lines(action.script)
        script = scratch.write("script", text.encode())
        interpreter = action.interpreter or shebang_interpreter(text) or DEFAULT_INTERPRETER
        argv = [*interpreter, str(script), *action.argv]
    with _stdin(action, payload, scratch) as stdin:
        scratch.hand_over()
        yield Program(
            argv=argv,
            env=_environment(attempt, account, variables, payload),
            cwd=Path(action.cwd) if action.cwd else _home(account),
            stdin=stdin,
            user=user,
            umask=action.umask or None,
            secrets=[value.encode() for value in variables.values()],
            lost_kill_after=attempt.kill_after if attempt.batch.dies_with_lease else None,
            bounds=bounds_of(action.limits),
        )


@contextlib.contextmanager
def _stdin(
    action: job_pb2.ShellAction, payload: Path, scratch: Scratch
) -> Iterator[BinaryIO | int]:
    """Open standard input: a file, so the worker needn't write to it and the child may seek."""
    if action.stdin == job_pb2.ShellAction.STDIN_NONE:
        yield subprocess.DEVNULL
        return
    if action.stdin == job_pb2.ShellAction.STDIN_TEXT:
        payload = scratch.write("stdin", action.stdin_text.encode())
    with payload.open("rb") as file:
        yield file


def _environment(
    attempt: AttemptStart, account: pwd.struct_passwd, variables: Mapping[str, str], payload: Path
) -> dict[str, str]:
    facts = {f"SCHEDD_{name.upper()}": value for name, value in attempt.facts().items()}
    return {
        "PATH": SEARCH_PATH,
        "LANG": "C.UTF-8",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        **variables,
        **attempt.common.shell.env,
        **facts,
        "SCHEDD_PAYLOAD_FILE": str(payload),
        **({"TRACEPARENT": trace} if (trace := attempt.traceparent) else {}),
    }


def _user(name: str) -> pwd.struct_passwd:
    """Raises ValueError: unknown user; OSError: the lookup failed."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        need_descriptor()
        raise ValueError(
            f"user {name!r} doesn't exist on the worker's host: create the user, or correct `user`"
        ) from None


def _own_account() -> pwd.struct_passwd:
    """Return the worker's account; in a container its uid may have no name."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "", uid, os.getgid(), "", "/", "/bin/sh"))


def _home(account: pwd.struct_passwd) -> Path:
    home = Path(account.pw_dir)
    return home if home.is_dir() else Path("/")


def _not_started(
    error: str, reason: OutcomeReason = OutcomeReason.EXIT_CODE, code: int = NOT_EXECUTABLE
) -> AttemptOutcome:
    return failed(f"not started: {error}", reason, exit_code=code)
