"""Kinds of failure: the failures that a word covers, and retries by kind."""

import grpc
import pytest

from schedd.core.runs.failure_kinds import (
    GRPC_STATUSES,
    AttemptFailure,
    WrongKind,
    kind,
    tries_again,
)
from schedd.core.runs.lifecycle import Reason

EXIT_75 = AttemptFailure(Reason.EXIT_CODE, 75, "exit code 75")
KILLED = AttemptFailure(Reason.SIGNAL, 137, "ended by SIGKILL")
ANSWERED_503 = AttemptFailure(Reason.HTTP_STATUS, 503, "HTTP 503 Service Unavailable")
RAISED = AttemptFailure(Reason.EXCEPTION, None, "ValueError: no such row: 75")
UNAVAILABLE = AttemptFailure(Reason.GRPC_STATUS, 14, "UNAVAILABLE: connection refused")
TIME_OVER = AttemptFailure(Reason.TIMEOUT, None, "timed out after 10s")
ALL = (EXIT_75, KILLED, ANSWERED_503, RAISED, UNAVAILABLE, TIME_OVER)


@pytest.mark.parametrize(
    ("word", "covered"),
    [
        ("75", {EXIT_75}),
        ("64-78", {EXIT_75}),
        ("76-78", set()),
        ("137", {KILLED}),
        ("SIGKILL", {KILLED}),
        ("SIGTERM", set()),
        ("503", {ANSWERED_503}),
        ("500-504", {ANSWERED_503}),
        ("5xx", {ANSWERED_503}),
        ("4XX", set()),
        ("14", set()),
        ("UNAVAILABLE", {UNAVAILABLE}),
        ("NOT_FOUND", set()),
        ("NOT-FOUND", set()),
        ("Unavailable", set()),
        ("grpc_status", {UNAVAILABLE}),
        ("OK", None),
        ("EXIT_CODE", {EXIT_75}),
        ("exit-code", {EXIT_75}),
        ("signal", {KILLED}),
        ("http_status", {ANSWERED_503}),
        ("Timeout", {TIME_OVER}),
        ("exception", {RAISED}),
        ("ValueError", {RAISED}),
        ("Value", set()),
        ("no", None),
        ("KeyError", set()),
        ("ended", None),
    ],
)
def test_a_retry_keyword_covers_only_failures_of_its_kind(
    word: str, covered: set[AttemptFailure] | None
) -> None:
    if covered is None:
        with pytest.raises(WrongKind):
            kind(word)
        return
    assert {one for one in ALL if kind(word).covers(one)} == covered


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("78-64", "its end is below its start (write 64-78)"),
        ("requests.Timeout", "give only the name of the class: Timeout"),
        ("SIGNOTHING", "isn't a valid kind of failure"),
        ("", "isn't a valid kind of failure"),
        ("DONT_RETRY", "isn't a valid kind of failure"),
        ("1000", "an exit code or HTTP status (75, 64-78, 5xx)"),
        ("-1", "isn't a valid kind of failure"),
    ],
)
def test_an_unknown_kind_is_rejected_with_valid_kinds(word: str, hint: str) -> None:
    with pytest.raises(WrongKind) as wrong:
        kind(word)
    assert hint in str(wrong.value)


@pytest.mark.parametrize(
    ("retry_on", "fail_on", "failure", "again"),
    [
        ((), (), EXIT_75, True),
        (("75",), (), EXIT_75, True),
        (("75",), (), RAISED, False),
        ((), ("75",), EXIT_75, False),
        ((), ("75",), RAISED, True),
        (("64-78",), ("75",), EXIT_75, False),
        (("5xx", "TIMEOUT"), (), ANSWERED_503, True),
        (("5xx", "TIMEOUT"), (), TIME_OVER, True),
        (("EXCEPTION", "ValueError"), (), AttemptFailure(Reason.DONT_RETRY, 100), False),
    ],
)
def test_fail_on_is_final_and_retry_on_makes_all_other_failures_final(
    retry_on: tuple[str, ...], fail_on: tuple[str, ...], failure: AttemptFailure, again: bool
) -> None:
    kinds = ([kind(word) for word in words] for words in (retry_on, fail_on))
    assert tries_again(*kinds, failure) is again


def test_grpc_status_names_map_to_their_own_numbers() -> None:
    theirs = {one.name: one.value[0] for one in grpc.StatusCode if one is not grpc.StatusCode.OK}
    assert theirs == GRPC_STATUSES
