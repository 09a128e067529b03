"""PostgreSQL uses no index for a comparison with a volatile function like `clock_timestamp()`: the
statement reads the whole table, although its result is right. `statement_timestamp()` is stable.
"""

import re
from typing import Final

from support.repository import ROOT

STORE: Final = ROOT / "schedd" / "store"
COMPARED: Final = re.compile(r"[<>]=?\s*(\w+\()?(func\.)?clock_timestamp\(\)")
AFTER_LOCKS: Final = {"timers/fire.py", "timers/fire_running.py"}
"""Statements that compare the time with rows found by key, after these rows were locked."""
OF_ONE_ROW: Final = {"cluster/recovery.py"}
"""The table `cluster` has one row."""
BY_MAKER: Final = {"access_tokens.py"}
"""Rows are found by their maker. With an index of the time the statement would read all tokens."""


def test_no_statement_compares_a_column_with_the_volatile_time() -> None:
    found = {
        str(one.relative_to(STORE)): texts
        for one in STORE.rglob("*.py")
        if (texts := [match[0] for match in COMPARED.finditer(one.read_text("utf-8"))])
    }
    assert found.keys() == AFTER_LOCKS | OF_ONE_ROW | BY_MAKER
