"""A Debian of its own whose systemd is booted: PostgreSQL, etcd, and what deploy/systemd installs.

    debootstrap ─→ base (kept for the next time) ─overlay─→ this boot: install, systemctl, reboot

The container has a network of its own (loopback), its own processes and a cgroup tree of version 2
that no service manager of the host knows of. Needs root and Debian's tools.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.repository import ROOT
from support.wait import wait_until

SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "acl", "curl", "procps"),
    *("python3-venv", "postgresql", "etcd-server"),
)
PROGRAMS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
}
MADE_OF = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
BASE = Path("/var/cache/schedd-booted") / f"{SUITE}-{MADE_OF}"
SOURCES = (
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "proto",
    "schedd",
    "workerd",
    "client",
    "deploy",
)
BOOTS_WITHIN = 90.0
REBOOTS = 133
"""Exit code of systemd-nspawn when its system asks for a reboot."""
UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare", "-m", "-C", "-p", "-f", "--kill-child")
"""Whatever ends this process, signals included, ends the system with it."""
QUIET = (
    "mount --make-rprivate / && mount -t proc proc /proc && mount -t cgroup2 none /sys/fs/cgroup"
)


def lacking_here() -> str | None:
    """Return why no system can be booted here; None if it can."""
    if os.geteuid() != 0:
        return "a container needs root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    tried = subprocess.run(
        [*UNSHARE, "bash", "-c", QUIET],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no container can be made: {tried.stderr.strip()}" if tried.returncode else None


def base() -> Path:
    """The bare system, made once on a machine."""
    if not (BASE / "made").exists():
        for mounted in ("proc", "sys"):  # by a debootstrap that was killed
            subprocess.run(["umount", "-R", str(BASE / "tree" / mounted)], check=False)
        shutil.rmtree(BASE, ignore_errors=True)
        BASE.mkdir(parents=True)
        include = ",".join(PACKAGES)
        made = ["debootstrap", "--variant=minbase", f"--include={include}", SUITE]
        _run(*made, str(BASE / "tree"))
        (BASE / "made").touch()
    return BASE / "tree"


class Machine:
    """A system that runs. A context manager: boots, and is gone afterwards with all it wrote."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="schedd-booted-"))
        self.root = self._folder / "root"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self.console = self._folder / "console"

    def __enter__(self) -> Machine:
        below, upper = base(), self._folder / "upper"
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            for name in ("upper", "root"):
                (self._folder / name).mkdir()
            stack.enter_context(_mounted(upper, "-t", "tmpfs", "-o", "size=3g", "schedd-booted"))
            for name in ("data", "work"):
                (upper / name).mkdir()
            layers = f"lowerdir={below},upperdir={upper / 'data'},workdir={upper / 'work'}"
            stack.enter_context(_mounted(self.root, "-t", "overlay", "-o", layers, "overlay"))
            (self.root / "etc/hostname").write_text("booted\n")
            (self.root / "etc/hosts").write_text("127.0.0.1 localhost booted\n")
            self._deliver()
            stack.callback(self._end)
            self.boot()
            self.await_boot()
            self._gone = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.close()

    def _end(self) -> None:
        if self._nspawn is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._nspawn.pid, signal.SIGKILL)
            self._nspawn.wait()

    def boot(self) -> None:
        """Start its systemd."""
        nspawn = "exec systemd-nspawn -b --keep-unit --register=no --private-network"
        nspawn += f" --console=pipe --machine=booted -D {self.root}"
        with self.console.open("ab") as console:
            self._nspawn = subprocess.Popen(
                [*UNSHARE, "bash", "-c", f"{QUIET} && {nspawn}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def await_boot(self, *, but: str = "") -> str:
        """Wait until a boot (another one than `but`) has ended; its id."""

        def booted() -> str:
            if self._nspawn and self._nspawn.poll() == REBOOTS:
                self.boot()
            asked = "systemctl is-system-running; cut -d' ' -f22 /proc/1/stat"
            try:  # what enters a system that ends may hang with it
                state, _, mark = self.run(asked, timeout=5.0).stdout.strip().partition("\n")
            except subprocess.TimeoutExpired:
                return ""
            return mark if state in ("running", "degraded") and mark != but else ""

        try:
            return wait_until(booted, BOOTS_WITHIN, "the system to have started")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.console.read_text()[-4000:]}") from None

    # ── commands in it ───────────────────────────────────────────────────────────────────────

    def run(
        self, script: str, *, env: Mapping[str, str] | None = None, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """A shell's commands as root."""
        leader = self._leader()
        if leader is None:
            return subprocess.CompletedProcess(script, 255, "", "the system isn't there")
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
        return subprocess.run(
            [*enter, "env", "-i", path, "LANG=C.UTF-8", *variables, "bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def tell(self, script: str) -> str:
        """Return the output of a command, whether or not it succeeds."""
        return self.run(script).stdout

    def must(self, script: str, **more: float) -> str:
        """Return the output of a command.

        Raises:
            AssertionError: it failed; with all that it said.
        """
        done = self.run(script, **more)
        if done.returncode:
            raise AssertionError(f"{script}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _leader(self) -> int | None:
        """The container's first process, as the host counts."""
        if self._nspawn is None:
            return None
        waiting, depth = [self._nspawn.pid], 0
        while waiting and depth < 6:
            below = [child for pid in waiting for child in _children(pid)]
            for pid in below:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                        return pid
            waiting, depth = below, depth + 1
        return None

    # ── what is installed ────────────────────────────────────────────────────────────────────

    def _deliver(self) -> None:
        """The source, and what pip would fetch: the container has no network."""
        source = self.root / "opt/source"
        source.mkdir(parents=True)
        for name in SOURCES:
            at = ROOT / name
            if at.is_dir():
                shutil.copytree(at, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(at, source / name)
        wheels = self.root / "opt/wheels"
        build = ["hatchling", "editables", "setuptools"]
        extras = f"{ROOT}[cli,server,worker]"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        _run(*pip, "--wheel-dir", str(wheels), extras, *build)


@contextlib.contextmanager
def _mounted(at: Path, *what: str) -> Iterator[None]:
    _run("mount", *what, str(at))
    try:
        yield
    finally:
        wait_until(
            lambda: subprocess.run(["umount", str(at)], check=False).returncode == 0,
            30.0,
            f"{at.name} to be free",
        )


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    print(lacking_here() or "", end="")
