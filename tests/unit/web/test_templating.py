"""How sentences begin on a page, and what templates may ask of the present instant."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from schedd.web.templating import HERE, _environment

TEMPLATES = sorted((HERE / "templates").glob("*.html"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no such job", "There is no such job"),
        ("runId: no id of a run", "runId: no id of a run"),
        ("time_zone: no", "time_zone: no"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_field_name(
    text: str, shown: str
) -> None:
    template = _environment.from_string("{{ text | capitalised }}")
    assert template.render(text=text) == shown


GIVEN_NOW = {"moment", "coming", "runs_table", "pager"}
"""Functions that may get the present time: `moment`, and callers that pass it on to that."""


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_use_only_the_day_of_now(path: Path) -> None:
    """Else a page whose reading is as it was (`looks`) would have to be drawn again."""
    tree = Environment().parse(path.read_text())
    named = [name for name in tree.find_all(nodes.Name) if (name.name, name.ctx) == ("now", "load")]
    calls = [call for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)]
    given = {id(part) for call in calls if call.node.name in GIVEN_NOW for part in call.args}
    assert [name.lineno for name in named if id(name) not in given] == []
