"""The race with peers, at its smallest: schedd and one peer, from nothing to the last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT


def test_schedd_and_a_peer_run_one_after_the_other_and_are_compared(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.peers", "--jobs", "500", "--rounds", "1"]
    asked = ["--peer", "procrastinate", "--deadline", "40", "--cache", str(tmp_path)]

    done = subprocess.run(
        [*command, *asked],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    us, peer = (line for line in lines if "peer" in line)
    assert "left_out" not in peer, peer["left_out"]
    assert (us["peer"], us["completed"], us["lost"], us["duplicates"]) == ("schedd", 2_500, 0, 0)
    assert (peer["completed"], peer["lost"], peer["duplicates"]) == (50, 0, 0)
    ours, theirs = (line for line in lines if "summary" in line)
    assert peer["schedd_over_peer"] == theirs["schedd_over_peer"]["median"]
    assert ours["store"] == theirs["store"]
    assert (ours["store"]["fsync"], ours["store"]["synchronous_commit"]) == ("on", "on")
