"""Members and workers as processes: their files, their environment, their start."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from schedctl.dev.configs import DRAIN_TIMEOUT, render
from schedctl.dev.errors import BadOverride, DevError, NotReady
from schedctl.dev.overrides import Override
from schedctl.dev.records import ClusterFolder, ClusterPart, ClusterState, PartKind, write_private
from schedctl.dev.servers.processes import DevProcess, spawn
from schedkit.text import duration

_MODULES = {PartKind.MEMBER: "schedd", PartKind.WORKER: "workerd"}
_AFTERWARDS = {PartKind.MEMBER: 5.0, PartKind.WORKER: 30.0}
"""Seconds beyond the drain: a worker ends what did not finish and hands its results over."""

_NOT_INHERITED = ("SCHEDD_", "WORKERD_", "PG", "NOTIFY_SOCKET", "WATCHDOG_")
"""Variables that would override the files written here, or speak for another service."""


def all_of(state: ClusterState) -> list[ClusterPart]:
    """Members first, then workers."""
    return [*state.of(PartKind.MEMBER), *state.of(PartKind.WORKER)]


def configure(
    folder: ClusterFolder,
    state: ClusterState,
    parts: Iterable[ClusterPart],
    overrides: Sequence[Override],
) -> None:
    """Write the configuration files of these daemons.

    Raises:
        BadOverride: an override doesn't fit; no file was written.
    """
    rendered = {part.name: render(folder, state, part, overrides) for part in parts}
    for name, text in rendered.items():
        write_private(folder.config(name), text)


def check(folder: ClusterFolder, parts: Iterable[ClusterPart], left: Callable[[], float]) -> None:
    """Have daemons check their own files, before anything is started. `left`: seconds it may take.

    Raises:
        BadOverride: one refuses a setting; says what it printed.
        NotReady: it took longer.
    """
    for part in parts:
        what = f"the check of {part.name}'s settings"
        done = _run(what, [*_command(folder, part), "--check-config"], folder, left())
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip().splitlines()
            problem = (
                told[0].removeprefix(f"{_MODULES[part.kind]}: ") if told else "no reason given"
            )
            raise BadOverride(
                f"--set: {part.name} refuses a setting: {problem}",
                f"docs/operations/configuration-{_MODULES[part.kind]}.md lists the settings",
            )


def migrate(folder: ClusterFolder, member: ClusterPart, timeout: float) -> None:
    """Bring the schema up to date, as this member's configuration says.

    Raises:
        NotReady: it took longer than `timeout` seconds.
        DevError: it failed; says what it printed.
    """
    command = _command(folder, member)
    command.insert(-2, "migrate")
    done = _run("schedd migrate", command, folder, timeout)
    if done.returncode != 0:
        raise DevError("schedd migrate failed", evidence=(done.stderr or done.stdout).strip())


def start(folder: ClusterFolder, part: ClusterPart) -> DevProcess:
    """Start one daemon with its file; returns before it is ready."""
    return spawn(
        _command(folder, part), log=folder.log(part.name), cwd=folder.root, env=environment()
    )


def patience(folder: ClusterFolder, parts: Iterable[ClusterPart]) -> float:
    """Seconds within which daemons that were told to end must have done so."""
    return max(
        (_drain_seconds(folder.config(part.name)) + _AFTERWARDS[part.kind] for part in parts),
        default=0.0,
    )


def environment() -> dict[str, str]:
    """What daemons inherit: all but settings of theirs, with paths made absolute.

    PYTHONPATH goes through, so that workers find handlers; loopback never goes through a proxy.
    That gRPC says nothing is for this command alone: in a daemon's log it says what it refused.
    """
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)
    }
    if inherited.get("GRPC_VERBOSITY") == "NONE":
        del inherited["GRPC_VERBOSITY"]
    if paths := inherited.get("PYTHONPATH"):
        inherited["PYTHONPATH"] = os.pathsep.join(
            os.fspath(Path(path).absolute()) for path in paths.split(os.pathsep)
        )
    for key in ("no_proxy", "NO_PROXY"):
        listed = [inherited[key]] if inherited.get(key) else []
        inherited[key] = ",".join([*listed, "127.0.0.1", "localhost"])
    return inherited


def _run(
    what: str, command: Sequence[str], folder: ClusterFolder, timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder.root,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise NotReady(f"{what} did not end in time") from late


def _command(folder: ClusterFolder, part: ClusterPart) -> list[str]:
    # -P: what happens to lie in the working directory must not shadow a module.
    module = _MODULES[part.kind]
    return [sys.executable, "-P", "-m", module, "--config", os.fspath(folder.config(part.name))]


def _drain_seconds(config: Path) -> float:
    """What a daemon's file says, or the default: to stop a cluster must work whatever is in it."""
    try:
        written = tomllib.loads(config.read_text(encoding="utf-8")).get("drain_timeout")
        return duration.parse(str(written or DRAIN_TIMEOUT)).total_seconds()
    except (OSError, ValueError):  # a broken TOML file is a ValueError too
        return duration.parse(DRAIN_TIMEOUT).total_seconds()
