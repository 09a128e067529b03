"""The columns of each table."""

from __future__ import annotations

from operator import attrgetter
from typing import get_type_hints

import pytest

from schedctl import columns
from schedctl.output import ValueTable

TABLES = {name: one for name, one in vars(columns).items() if isinstance(one, ValueTable)}


@pytest.mark.parametrize("name", TABLES)
def test_each_attribute_of_a_table_exists(name):
    table = TABLES[name]
    getters = [table.name, *(one.cell for one in table.columns)]
    for getter in getters:
        if isinstance(getter, attrgetter):
            of = table.of
            for word in getter.__reduce__()[1][0].split("."):
                hints = get_type_hints(of)
                assert word in hints or isinstance(getattr(of, word, None), property), (of, word)
                of = hints.get(word)
