"""Files of a development cluster that may hold a password are closed to other users of the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from schedctl.dev.records import write_private


def test_a_private_file_is_private_even_in_place_of_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "m1.toml"
    path.write_text("old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        write_private(path, "dsn = 1\n")
    finally:
        os.umask(before)

    assert path.read_text() == "dsn = 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
