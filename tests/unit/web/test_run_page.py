"""The page of a run from values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schedd.web import templating
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1.run_service_pb2 import ExplainRunResponse

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)
ASKED = ExplainRunResponse.Check(question="Is it paused?", answer="no")


def html(*checks: ExplainRunResponse.Check, result: str = "") -> str:
    run = run_pb2.Run(run_id="r", job="etl", state=common_pb2.RUN_STATE_SUCCEEDED)
    run.due_at.FromDatetime(NOW)
    seen = {
        "run": run,
        "place": "",
        "elsewhere": False,
        "trigger": "schedule",
        "live": False,
        "can_retry": False,
        "steps": (),
        "answer": "It succeeded.",
        "checks": checks,
        "result": result,
        "log": (),
    }
    link = templating.linker("")
    return templating.render("run_body.html", seen=seen, now=NOW, link=link, may=lambda *_: True)


@pytest.mark.parametrize(
    ("page", "titles"),
    [
        (html(), []),
        (html(ASKED), ["Explanation"]),
        (html(result="42"), ["Result"]),
        (html(ASKED, result="42"), ["Explanation", "Result"]),
    ],
    ids=["neither", "checks", "result", "both"],
)
def test_an_empty_section_has_no_card(page: str, titles: list[str]) -> None:
    assert ('id="checks"' in page) is bool(titles)
    assert [title for title in ("Explanation", "Result") if f"<h2>{title}</h2>" in page] == titles
