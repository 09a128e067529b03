"""How sentences begin on a page."""

from __future__ import annotations

import pytest

from schedd.web.templating import _environment


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no such job", "There is no such job"),
        ("runId: no id of a run", "runId: no id of a run"),
        ("time_zone: no", "time_zone: no"),
        ("", ""),
    ],
)
def test_a_sentence_begins_great_but_the_name_of_a_field_stays_one(text: str, shown: str) -> None:
    template = _environment.from_string("{{ text | capitalised }}")
    assert template.render(text=text) == shown
