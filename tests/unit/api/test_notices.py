"""Notifications of a job: recipients, channels and limits are checked when it is created."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from schedctl.manifests import manifests
from schedd.api.definitions.notifications import check_means, violations
from schedd.api.errors import InvalidArgumentError
from schedd.api.services import Services
from schedd.core.jobs.notifications import DeliveryMeans
from schedkit.protojson import from_json
from schedproto.v1 import job_pb2
from support.repository import ROOT

HOOK = {"webhook": "https://ops.example.com:8443/hook?team=etl"}


def job(**fields: Any) -> job_pb2.Job:
    return from_json(fields, job_pb2.Job)


@pytest.mark.parametrize(
    "fields",
    [
        {"on_failure": HOOK | {"threshold": 3, "min_interval": "1h"}, "on_recovery": HOOK},
        {"on_dead_letter": {"email": "ops+etl@example.com"}, "on_recovery": HOOK},
        {"on_late": {"command": ["/opt/page", "the ops; $(id)"], "after": "366d"}},
    ],
)
def test_valid_notifications_are_accepted(fields: dict[str, Any]) -> None:
    assert [*violations(job(**fields))] == []


@pytest.mark.parametrize(
    ("field", "said", "named"),
    [
        ("on_failure", {"threshold": 2}, ""),
        ("on_failure", {"webhook": "ftp://ops.example.com/"}, ".webhook"),
        ("on_failure", {"webhook": "https://me:secret@ops.example.com/"}, ".webhook"),
        ("on_failure", {"webhook": "https://ops.example.com/my hook"}, ".webhook"),
        ("on_failure", {"webhook": "https://ops.example.com/hook\n"}, ".webhook"),
        ("on_failure", {"command": ["page", "x"]}, ".command"),
        ("on_failure", {"command": ["/opt/page", "a\0b"]}, ".command"),
        ("on_failure", {"email": "ops"}, ".email"),
        ("on_failure", {"email": "a@example.com\r\nRCPT TO:<b@example.com>"}, ".email"),
        ("on_failure", {"email": ["a@example.com"] * 21}, ".email"),
        ("on_failure", {"email": "=?**?q??=@x"}, ".email"),
        ("on_failure", HOOK | {"threshold": -1}, ".threshold"),
        ("on_late", HOOK | {"threshold": 2}, ".threshold"),
        ("on_failure", HOOK | {"min_interval": "-1s"}, ".min_interval"),
        ("on_failure", HOOK | {"min_interval": "9000h"}, ".min_interval"),
        ("on_failure", HOOK | {"after": "1m"}, ".after"),
        ("on_late", HOOK | {"after": "0s"}, ".after"),
        ("on_recovery", HOOK, ""),
    ],
)
def test_notifications_that_reach_no_one_are_refused_by_field(
    field: str, said: dict[str, Any], named: str
) -> None:
    assert [each.field for each in violations(job(**{field: said}))] == [field + named]


class Calls:
    """The part of the services that the check uses."""

    def __init__(self, means: DeliveryMeans) -> None:
        self.means = means


def test_a_job_uses_only_permitted_channels_and_stays_editable_without_them() -> None:
    notified = job(on_failure={"command": ["/opt/page", "x"], "email": "a@example.com"})
    rich = cast("Services", Calls(DeliveryMeans(("/opt/page",), mail=True)))
    check_means(rich, notified)
    poor = cast("Services", Calls(DeliveryMeans(("/opt/pager",))))
    with pytest.raises(InvalidArgumentError) as refused:
        check_means(poor, notified)
    fields = [one.field for one in refused.value.violations]
    assert fields == ["on_failure.command", "on_failure.email"]
    check_means(poor, notified, notified)


def test_the_manifest_of_the_docs_is_accepted() -> None:
    page = (ROOT / "docs" / "semantics" / "notifications.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(name: etl\n.*?on_late.*?)```", page, re.DOTALL)
    [read] = manifests.parse("notifications.md", text)
    assert isinstance(read, manifests.Manifest)
    assert [*violations(read.spec)] == []
    assert read.spec.on_failure.threshold == 3
