"""`schedd --check-config`: a file, the environment and flags, as a person gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SCHEDD_")}
    return subprocess.run(
        [sys.executable, "-m", "schedd", *flags, "--check-config"],
        env=plain | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_flags_go_before_the_environment_and_that_before_the_file(file: Path) -> None:
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


def test_a_variable_that_means_nothing_is_told(file: Path) -> None:
    told = check("--config", str(file), SCHEDD_NAMES="m1")
    assert told.returncode == 0
    assert "SCHEDD_NAMES" in told.stderr
    assert "did you mean 'SCHEDD_NAME'?" in told.stderr


def test_failpoints_are_looked_at_too(file: Path) -> None:
    told = check("--config", str(file), SCHEDD_FAILPOINTS="fire.nowhere=kill")
    assert told.returncode == 2
    assert "fire.nowhere" in told.stderr
