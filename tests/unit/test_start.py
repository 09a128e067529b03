"""A member loads no module at its start that it may never need, since loading takes long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SEEN = """
import json, sys
import schedd.app.daemon
heavy = ("alembic", "aiohttp", "mako", "pygments")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


@pytest.mark.slow
def test_a_member_loads_neither_the_tool_that_changes_schemas_nor_a_client_of_http() -> None:
    ended = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == []
