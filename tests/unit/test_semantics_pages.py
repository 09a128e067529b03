"""Each manifest on the pages below `docs/semantics` can be stored."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schedctl.manifests import manifests
from schedd.api.definitions import validation
from schedproto.v1 import job_pb2
from support.definitions import requested
from support.repository import ROOT

PAGES = sorted((ROOT / "docs" / "semantics").glob("*.md"))
INDEX = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_manifest_of_a_page_is_valid(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for read in manifests.parse(page.name, block):
            assert not isinstance(read, manifests.ManifestFault), read
            if isinstance(read.spec, job_pb2.Job) and not read.spec.exclude.calendars:
                validation.check(requested(read.spec), datetime.now(UTC))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_is_in_the_index(page: Path) -> None:
    assert f"](semantics/{page.name})" in INDEX


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_begins_with_a_summary_and_an_example(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["In short", "Example"]
