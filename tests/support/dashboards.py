"""Grafana's dashboards as they are shipped, panel by panel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support.repository import ROOT

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARDS: list[dict[str, Any]] = [
    json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((FOLDER / "dashboards").glob("*.json"))
]


@dataclass(frozen=True)
class Query:
    """PromQL, and what its series are called."""

    expr: str
    legend: str

    def filled(self) -> str:
        """As Grafana sends it, with all chosen of each variable."""
        expr = self.expr.replace("$__rate_interval", "1m")
        for variable in ("$member", "$worker", "$pool"):
            expr = expr.replace(variable, ".*")
        return expr


@dataclass(frozen=True)
class Panel:
    """A panel that shows data."""

    dashboard: str
    json: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.dashboard}-{self.json['title']}"

    @property
    def kind(self) -> str:
        return str(self.json["type"])

    @property
    def queries(self) -> list[Query]:
        return [Query(each["expr"], each["legendFormat"]) for each in self.json["targets"]]


def panels() -> Iterator[Panel]:
    """All but the headings of rows."""
    for made in DASHBOARDS:
        for panel in made["panels"]:
            if panel["type"] != "row":
                yield Panel(made["uid"], panel)
