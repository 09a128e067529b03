"""Fields of forms: those that an action takes, and that any other is refused by name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.web.app import PAGES
from schedd.web.pages.page import RETURN, Action, Done, PageRequest, taking
from schedd.web.templating import ONCE
from support.callers import TESTER

ACTIONS = [action for page in PAGES for action in page.actions]


def form_request(**fields: str) -> PageRequest:
    """A form, of a member that has nothing to do it by."""
    return PageRequest(cast("Any", None), TESTER, fields=fields)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.path)
async def test_each_action_refuses_a_field_that_its_form_doesnt_have(action: Action) -> None:
    with pytest.raises(InvalidArgumentError, match="foo: unknown field") as refused:
        await action.do(form_request(foo="1"))
    [violation] = refused.value.violations
    assert (refused.value.reason, violation.field) == ("UNKNOWN_FIELD", "foo")


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.path)
async def test_a_namespace_in_a_form_is_rejected(action: Action) -> None:
    with pytest.raises(InvalidArgumentError, match="namespace: belongs in the address"):
        await action.do(form_request(namespace="zz"))


async def test_a_form_takes_its_own_and_common_fields_and_reports_all_others() -> None:
    @taking("reason")
    async def do(form: PageRequest) -> Done:
        return Done(form.fields["reason"], "/")

    fields = {"reason": "disks", ONCE: "0123", RETURN: "/jobs"}
    assert (await do(form_request(**fields))).message == "disks"
    with pytest.raises(InvalidArgumentError, match=r"foo: unknown .*; bar: unknown ") as refused:
        await do(form_request(**fields, foo="", bar="x"))
    assert (
        refused.value.remedy
        == "leave the field out; fields of the form: reason; nothing was changed"
    )
