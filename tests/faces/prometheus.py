"""A real Prometheus over a cluster, with the alerts as they are shipped, but shorter delays."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from support.repository import ROOT
from support.s3 import free_port
from support.wait import wait_until

SHIPPED = ROOT / "deploy" / "prometheus"
WAIT_TIMEOUT = "2s"


@dataclass(frozen=True)
class Prometheus:
    """Running Prometheus."""

    url: str

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=5) as answer:
            alerts: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def value(self, query: str) -> float | None:
        """Return this single value now; None if there is none yet."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/query?{urlencode({'query': query})}"
        ) as got:
            found: list[dict[str, Any]] = json.load(got)["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def answers(self, query: str) -> int:
        """How many series the query gives now. Raises what Prometheus says of one it can't read."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/query?{urlencode({'query': query})}"
            ) as got:
                return len(json.load(got)["data"]["result"])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @classmethod
    @contextmanager
    def started(cls, folder: Path, targets: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
        """Run a Prometheus in this folder; end it with the block."""
        rules = (SHIPPED / "alerts.yml").read_text(encoding="utf-8")
        (folder / "alerts.yml").write_text(re.sub(r"\bfor: \w+", f"for: {WAIT_TIMEOUT}", rules))
        config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [*targets[job["job_name"]]]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        argv = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [*argv, f"--web.listen-address={address}"], cwd=folder, stdout=log, stderr=log
            )
        try:
            made = cls(f"http://{address}")
            wait_until(made.ready, 30, "Prometheus")
            yield made
        finally:
            process.terminate()
            process.wait(timeout=30)
