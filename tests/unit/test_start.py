"""A process loads no module at its start that it may never need, since loading takes long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SEEN = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("schedd.app.daemon", ("alembic", "aiohttp", "mako", "pygments")),
        ("workerd.app.daemon", ("aiohttp", "yarl")),
        ("workerd.process.keeper", ("dataclasses", "inspect", "asyncio")),
        ("workerd.process.cgroup_launcher", ("dataclasses", "inspect", "asyncio")),
    ],
)
def test_a_start_loads_no_heavy_module_that_it_may_not_need(
    module: str, heavy: tuple[str, ...]
) -> None:
    command = [sys.executable, "-P", "-c", SEEN, module, *heavy]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == []
