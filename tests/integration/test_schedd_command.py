"""`schedd --check-config`: a file, the environment and flags, as a person gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from schedctl.authority import Authority, Subject
from schedd.core.auth.rights import IdentityKind, uri_of, uris_of_worker
from schedkit.net.channel import TLS
from support import fork_server
from support.early_close import unread

FILE = """
name = "m9"
[etcd]
endpoints = ["127.0.0.1:1"]
[postgres]
dsn = "postgresql://of-the-file/d"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "schedd.toml"
    written.write_text(FILE)
    return written


def check(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command(*flags, "--check-config", **environ)


def command(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SCHEDD_")}
    return fork_server.run([sys.executable, "-m", "schedd", *flags], env=plain | environ)


def test_flags_have_priority_over_the_environment_and_that_over_the_file(file: Path) -> None:
    shown = check(
        "--config", str(file), "--name", "of-the-flag",
        SCHEDD_NAME="of-the-environment",
        SCHEDD_MEMBER_TTL="9s",
        SCHEDD_ETCD__PREFIX="elsewhere/",
        SCHEDD_JOB="a job's, not ours",
    )  # fmt: skip
    assert (shown.returncode, shown.stderr) == (0, "")
    found = json.loads(shown.stdout)
    assert found["name"] == "of-the-flag"
    assert found["member_ttl"] == "0:00:09"
    assert found["etcd.prefix"] == "elsewhere/"


def test_the_environment_alone_is_enough() -> None:
    shown = check(SCHEDD_POSTGRES__DSN="postgresql://x@h/d", SCHEDD_ETCD__ENDPOINTS="127.0.0.1:1")
    assert shown.returncode == 0, shown.stderr


def test_all_mistakes_are_reported_at_once_by_the_check_and_by_the_start(tmp_path: Path) -> None:
    file = tmp_path / "schedd.toml"
    file.write_text("""
log_level = "loud"
member_ttl = "1s"
[listen]
http = "nonsense"
advertise_http = "nowhere"
[postgres]
dsn = "not a dsn"
lanes = 0
[tls]
ca = "/none/ca.pem"
cert = "/none/cert.pem"
key = "/none/key.pem"
""")
    for done in (
        check("--config", str(file), SCHEDD_ETCD__ENDPOINTS=""),
        command("--config", str(file), SCHEDD_ETCD__ENDPOINTS=""),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        said = done.stderr.removeprefix("schedd: ").replace(f"{file}", "FILE").splitlines()
        starts = [
            "FILE:2: log_level must be one of debug, info, warning, error, not 'loud'",
            "FILE:6: listen.advertise_http: address 'nowhere' isn't valid: write host:port",
            "SCHEDD_ETCD__ENDPOINTS: etcd.endpoints: no server is given",
            "FILE:8: postgres.dsn: must be a URL",
            "FILE:9: postgres.lanes: must be from 1 to 64",
            "FILE:3: member_ttl: the duration must be from 3s to 1d",
            "FILE:5: listen.http: address 'nonsense' isn't valid: write host:port",
            "FILE:11: tls.ca: /none/ca.pem can't be read",
            "FILE:12: tls.cert: /none/cert.pem can't be read",
            "FILE:13: tls.key: /none/key.pem can't be read",
        ]
        assert len(said) == len(starts), said
        assert all(map(str.startswith, said, starts)), said


def test_an_unknown_variable_is_reported(file: Path) -> None:
    done = check("--config", str(file), SCHEDD_NAMES="m1")
    assert done.returncode == 0
    assert "SCHEDD_NAMES" in done.stderr
    assert "did you mean 'SCHEDD_NAME'?" in done.stderr


def test_a_closed_pipe_isnt_an_error(file: Path) -> None:
    assert unread([sys.executable, "-m", "schedd", "--config", str(file), "--check-config"]) == (
        0,
        "",
    )


def test_the_check_rejects_unknown_failpoints_too(file: Path) -> None:
    done = check("--config", str(file), SCHEDD_FAILPOINTS="fire.nowhere=kill")
    assert done.returncode == 2
    assert "fire.nowhere" in done.stderr


WRONG = {
    "a worker's": "names 'schedd://worker/w1', but this member is 'm9'",
    "another member's": "names 'schedd://member/m1', but this member is 'm9'",
    "another's key": "is the key of another certificate than",
    "no authority": "tls.ca: ",
    "another authority's": "isn't signed by an authority of",
    "ended": "m9.pem expired at",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TLS]:
    """By what is wrong with them; nothing with those of `""`."""
    folder, day = tmp_path_factory.mktemp("tls"), timedelta(days=1)
    authority = Authority.create(folder / "ca")

    def member(name: str, lifetime: timedelta = day, by: Authority = authority) -> TLS:
        subject = Subject(name, [uri_of(IdentityKind.MEMBER, name)], ["127.0.0.1"])
        return by.issue(subject, folder / f"{len([*folder.iterdir()])}", lifetime)

    right, m1 = member("m9"), member("m1")
    stranger = member("m9", by=Authority.create(folder / "other"))
    return {
        "": right,
        "a worker's": authority.issue(Subject("w1", uris_of_worker("w1")), folder / "w", day),
        "another member's": m1,
        "another's key": TLS(right.ca, right.cert, m1.key),
        "no authority": TLS(folder / "none.pem", right.cert, right.key),
        "another authority's": TLS(right.ca, stranger.cert, stranger.key),
        "ended": member("m9", timedelta(minutes=-1)),
    }


def with_tls(file: Path, tls: TLS) -> str:
    file.write_text(f'{FILE}[tls]\nca = "{tls.ca}"\ncert = "{tls.cert}"\nkey = "{tls.key}"\n')
    return str(file)


def test_a_member_certificate_passes_the_check(file: Path, files: dict[str, TLS]) -> None:
    shown = check("--config", with_tls(file, files[""]))
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize("what", WRONG)
def test_unusable_certificate_files_are_refused_by_the_check_and_by_the_start(
    file: Path, files: dict[str, TLS], what: str
) -> None:
    written = with_tls(file, files[what])
    done = check("--config", written)
    again = 75 if what == "ended" else 2  # a clock may be set right, so that is tried again
    assert done.returncode == again
    assert WRONG[what] in done.stderr
    started = command("--config", written)
    assert (started.returncode, started.stdout) == (again, "")
    assert WRONG[what] in started.stderr
    assert "can't listen" not in started.stderr
    assert command("migrate", "--config", written).stderr.count("tls.") == 0
