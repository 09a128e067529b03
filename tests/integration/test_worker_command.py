"""The command `workerd`: settings, mistakes in them, TLS."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schedkit.net.channel import TLS
from schedproto.v1 import worker_service_pb2 as pb
from support import fork_server
from support.certs import Authority
from support.early_close import unread
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess, cluster


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return fork_server.run([sys.executable, "-m", "workerd", *arguments], env=environ)


def test_a_checked_configuration_is_shown_with_flags_over_environment_over_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "workerd.toml"
    file.write_text(
        'name = "w9"\nendpoints = ["127.0.0.1:1"]\nspool = "/tmp/x"\nslots = 3\n'
        'drain_timeout = "5s"\n[labels]\ndisk = "ssd"\n[listen]\nhttp = "127.0.0.1:1234"\n'
    )
    environ = {"WORKERD_SLOTS": "4", "WORKERD_DRAIN_TIMEOUT": "6s", "SCHEDD_JOB": "not mine"}
    shown = run("--config", str(file), "--check-config", "--slots", "5", environ=environ)
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert "slots = 5" in lines
    assert "drain_timeout = 0:00:06" in lines
    assert "name = w9" in lines
    assert "listen.http = 127.0.0.1:1234" in lines
    assert "SCHEDD_JOB" not in shown.stderr


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "workerd.toml"
    file.write_text('slot = 3\ndrain_timeout = 5\nendpoints = ["127.0.0.1:1"]\n')
    done = run("--config", str(file), "--check-config", environ={})
    assert done.returncode == 2
    assert "did you mean 'slots'" in done.stderr
    assert "drain_timeout" in done.stderr
    assert "spool: a value is required" in done.stderr


def test_impossible_values_are_reported_with_unreadable_ones(tmp_path: Path) -> None:
    file = tmp_path / "workerd.toml"
    file.write_text("""
endpoints = ["nonsense"]
log_level = "loud"
slots = 0
[listen]
http = "::1"
[results]
result_mib = -1
[tls]
ca = "/none/ca.pem"
cert = "/none/cert.pem"
""")
    done = run("--config", str(file), "--check-config", environ={"WORKERD_NAME": "UPPER"})
    assert done.returncode == 2
    assert done.stderr.replace(f"{file}", "FILE").splitlines() == [
        "spool: a value is required: set it in the file, by WORKERD_SPOOL or --spool",
        "FILE:8: results.result_mib: must be from 0 to 1024",
        "FILE:10: tls: the setting tls has only one of cert and key: give both files",
        "FILE:3: log_level must be one of debug, info, warning, error, not 'loud'",
        ("FILE:4: slots: must be from 1 to 20000, not 0; for more slots run several workers"),
        "WORKERD_NAME: name: 'UPPER' must match [a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?",
        "FILE:2: endpoints: address 'nonsense' isn't valid: write host:port",
        (
            "FILE:6: listen.http: address '::1' isn't valid: write host:port, or"
            " [address]:port for IPv6, such as [fd00::7]:7420"
        ),
    ]


def test_a_lone_file_of_tls_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "workerd.toml"
    file.write_text(f"""
endpoints = ["127.0.0.1:1"]
spool = "{tmp_path}"
[tls]
key = "/none/key.pem"
""")
    done = run("--config", str(file), "--check-config", environ={})
    assert done.stderr == "tls.ca: a value is required: set it in the file or by WORKERD_TLS__CA\n"


def test_an_empty_variable_that_unsets_what_the_file_gives_is_named(tmp_path: Path) -> None:
    file = tmp_path / "workerd.toml"
    file.write_text(f'endpoints = ["127.0.0.1:1"]\nspool = "{tmp_path}"\n')
    done = run("--config", str(file), "--check-config", environ={"WORKERD_ENDPOINTS": ""})
    assert done.returncode == 2
    assert done.stderr.startswith("WORKERD_ENDPOINTS: endpoints: no member is named")


HANDLERS = {
    "no.such.module": "handlers: the module 'no.such.module' can't be imported: ModuleNotFound",
    "broken": "handlers: the module 'broken' can't be imported: ZeroDivisionError: ",
    "ending": "handlers: the module 'ending' can't be imported: SystemExit: 0",
    "odd": "handlers: the payload type of handler 'odd' can't be used: ",
}


@pytest.mark.parametrize(("module", "said"), HANDLERS.items(), ids=HANDLERS)
def test_handlers_that_no_start_takes_are_refused_by_the_check(
    tmp_path: Path, module: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "ending.py").write_text("raise SystemExit(0)")
    (tmp_path / "odd.py").write_text(
        "from schedclient.handlers import handler\n"
        "@handler\ndef odd(payload: 'Nowhere', ctx): ...\n"
    )
    flags = ["--endpoints", "127.0.0.1:1", "--spool", str(tmp_path / "spool")]
    flags += ["--listen-http", "127.0.0.1:0", "--handlers", module]
    environ = {"PYTHONPATH": str(tmp_path)}
    checked = run(*flags, "--check-config", environ=environ)
    assert not (tmp_path / "spool").exists()
    for done in (checked, run(*flags, environ=environ)):
        assert done.returncode == 2, done
        assert said in done.stderr


def test_handlers_that_a_start_takes_pass_the_check(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from schedclient.handlers import handler\n@handler\ndef fine(payload, ctx): ...\n"
    )
    flags = ["--endpoints", "127.0.0.1:1", "--spool", str(tmp_path / "spool")]
    environ = {"PYTHONPATH": str(tmp_path)}
    done = run(*flags, "--handlers", "mine", "--check-config", environ=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_spool_that_can_t_be_made_is_refused_by_the_check_and_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    flags = ["--endpoints", "127.0.0.1:1", "--listen-http", "127.0.0.1:0"]
    flags += ["--spool", str(tmp_path / "file" / "spool")]
    for more in (["--check-config"], []):
        done = run(*flags, *more, environ={})
        assert done.returncode == 2, done
        said = f"--spool: spool: {tmp_path}/file/spool can't be created"
        assert done.stderr.startswith(said), done


async def test_handlers_that_no_start_finds_are_logged_at_a_reload(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, worker):
        file = tmp_path / "workerd.toml"
        file.write_text('handlers = ["no.such.module"]\n' + file.read_text())
        worker.signal(signal.SIGHUP)
        said = f"{file}:1: handlers: module 'no.such.module' not found"
        await wait_until_async(lambda: said in worker.log.read_text(), WAIT_TIMEOUT, "its word")


def test_a_closed_pipe_isnt_an_error() -> None:
    flags = ["--endpoints", "127.0.0.1:1", "--spool", "/tmp/x", "--check-config"]
    assert unread([sys.executable, "-m", "workerd", *flags]) == (0, "")


def test_plaintext_leaves_this_host_only_when_asked() -> None:
    flags = ("--endpoints", "10.0.0.1:7420", "--spool", "/tmp/x", "--check-config")
    refused = run(*flags, environ={})
    assert refused.returncode == 2
    assert "insecure" in refused.stderr
    assert run(*flags, environ={"WORKERD_INSECURE": "true"}).returncode == 0


def test_a_missing_extra_is_named_with_the_remedy() -> None:
    hidden = "import sys; sys.modules['aiohttp'] = None; sys.argv = ['workerd']; "
    # A finder that knows no aiohttp, as on a machine where only the SDK is installed.
    hide = (
        "import importlib.util as u; real = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'aiohttp' else real(name, *rest); "
        "from workerd.__main__ import main; sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden + hide], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "aiohttp" in done.stderr
    assert "pip install 'schedd[worker]'" in done.stderr


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("schedd://worker/wx", "names 'schedd://worker/wx', but this worker is 'w2'"),
        ("schedd://member/w2", "names 'schedd://member/w2', but this worker is 'w2'"),
        ("SCHEDD://worker/w2", "names 'SCHEDD://worker/w2', but this worker is 'w2'"),
    ],
)
def test_a_certificate_that_doesn_t_name_it_is_refused_by_the_check_and_by_the_start(
    tmp_path: Path, uri: str, said: str
) -> None:
    mine = Authority.create(tmp_path / "ca").issue("w", san=f"URI:{uri}")
    for done in check_and_start(tmp_path, mine):
        assert done.returncode == 2
        assert said in done.stderr
        assert "issue it: schedctl auth issue worker w2" in done.stderr


def test_all_unusable_files_of_tls_are_reported(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    mine = authority.issue("w", san="URI:schedd://worker/w1")
    other = authority.issue("other")
    for done in check_and_start(tmp_path, TLS(tmp_path / "none.pem", mine.cert, other.key)):
        assert done.returncode == 2
        [ca, key, name] = done.stderr.splitlines()
        assert ": tls.ca: " in ca
        assert "this worker is 'w2'" in name
        assert "is the key of another certificate" in key


def check_and_start(tmp_path: Path, tls: TLS) -> list[subprocess.CompletedProcess[str]]:
    """Return the results of w2 with these files: of its check, and of its start."""
    file = tmp_path / "workerd.toml"
    file.write_text(
        f'name = "w2"\nendpoints = ["127.0.0.1:1"]\nspool = "{tmp_path / "spool"}"\n'
        f'[listen]\nhttp = "127.0.0.1:0"\n'
        f'[tls]\nca = "{tls.ca}"\ncert = "{tls.cert}"\nkey = "{tls.key}"\n'
    )
    flags = ["--config", str(file)]
    return [run(*flags, "--check-config", environ={}), run(*flags, environ={})]


async def test_a_worker_attaches_over_mutual_tls(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    member = FakeMember()
    member.tls = authority.issue("member")
    mine = authority.issue("worker", san="URI:schedd://worker/w1")
    async with member:
        worker = WorkerProcess(tmp_path, [member.address])
        worker.config = f'[tls]\nca = "{mine.ca}"\ncert = "{mine.cert}"\nkey = "{mine.key}"\n'
        worker.start()
        try:
            stream = await member.attached()
            await stream.granted_at_least(1)
            result = await stream.result_of(await stream.assign(argv=["true"]))
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
            await stream.acknowledge(result.key)
        finally:
            await worker.stop()
