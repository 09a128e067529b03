"""Failures of etcd: the meaning of each status, and the endpoint of the next call."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from schedd.etcd.access import EtcdAccess, Login
from schedd.etcd.codec import Codec, end_of
from schedd.etcd.connection import Ring
from schedd.etcd.errors import (
    AccessDenied,
    EtcdCallFailed,
    EtcdRefused,
    EtcdRemedy,
    LeaseGone,
    LoginBackoff,
    NoSpace,
    OutcomeUnknown,
    RevisionGone,
    RightsOff,
    judge,
)
from schedkit.errors import Fault, Rejected, Unavailable

AWAY = [
    (StatusCode.UNAVAILABLE, "Socket closed"),
    (StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
    (StatusCode.UNAVAILABLE, "etcdserver: server stopped"),
    (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
    (StatusCode.UNKNOWN, "context canceled"),
    (StatusCode.INTERNAL, "Received RST_STREAM"),
    (StatusCode.CANCELLED, ""),
]


@pytest.mark.parametrize(("code", "details"), AWAY)
def test_a_write_without_an_answer_is_unknown_and_not_retried_elsewhere(code, details):
    failure = judge(code, details, writes=True)
    assert isinstance(failure.error, OutcomeUnknown)
    assert failure.remedy is EtcdRemedy.NONE
    assert failure.distrust


@pytest.mark.parametrize(("code", "details"), AWAY)
def test_a_read_without_an_answer_is_unavailable(code, details):
    failure = judge(code, details, writes=False)
    assert type(failure.error) is Unavailable
    spent = code is StatusCode.DEADLINE_EXCEEDED
    assert failure.remedy is (EtcdRemedy.NONE if spent else EtcdRemedy.ELSEWHERE)
    assert failure.distrust


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.UNAVAILABLE, "etcdserver: no leader"),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    ],
)
def test_a_call_that_etcd_rejected_unread_may_go_to_another_endpoint(code, details, writes):
    failure = judge(code, details, writes=writes)
    assert type(failure.error) is Unavailable
    assert failure.remedy is EtcdRemedy.ELSEWHERE


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty"),
    ],
)
def test_a_stale_token_asks_for_a_new_one(code, details):
    failure = judge(code, details, writes=True)
    assert failure.remedy is EtcdRemedy.TOKEN
    assert isinstance(failure.error, AccessDenied)
    assert not failure.distrust


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", AccessDenied),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            AccessDenied,
        ),
        (StatusCode.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", RightsOff),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseGone),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", NoSpace),
        (
            StatusCode.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
            RevisionGone,
        ),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: duplicate key given in txn request",
            EtcdRefused,
        ),
        (StatusCode.UNIMPLEMENTED, "unknown service", Unavailable),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", Unavailable),
    ],
)
def test_each_status_raises_its_own_error(code, details, kind):
    failure = judge(code, details, writes=True)
    assert type(failure.error) is kind
    assert failure.remedy is EtcdRemedy.NONE
    assert not failure.distrust


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("code", list(StatusCode))
def test_only_an_invalid_request_to_etcd_is_a_fault(code, writes):
    error = judge(code, "something new", writes=writes).error
    bug = code is StatusCode.INVALID_ARGUMENT
    assert isinstance(error, Fault) if bug else isinstance(error, Unavailable)


@pytest.mark.parametrize(
    ("code", "details", "reason"),
    [
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", "permission_denied"),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            "login_rejected",
        ),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", "login_rejected"),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", "no_space"),
    ],
)
def test_a_rejection_has_a_reason_and_a_remedy(code, details, reason):
    error = judge(code, details, writes=True).error
    assert isinstance(error, Rejected)
    assert error.reason == reason
    assert details in error.cause
    assert error.remedy in str(error)


def test_a_missing_permission_has_the_command_that_grants_it():
    access = EtcdAccess(("a:1",), user="app", password="secret", prefix="schedd/")
    for writes in (True, False):
        failure = judge(
            StatusCode.PERMISSION_DENIED,
            "etcdserver: permission denied",
            writes=writes,
            access=access,
        )
        assert isinstance(failure.error, Rejected)
        assert "`etcdctl role grant-permission ROLE --prefix=true readwrite schedd/`" in (
            failure.error.remedy
        )
        assert "`etcdctl user get app`" in failure.error.remedy


def test_a_rejected_login_isnt_sent_again_at_once():
    now = [100.0]
    backoff, login = LoginBackoff(lambda: now[0]), Login("schedd", "old")
    backoff.check(login)
    words = "etcdserver: authentication failed, invalid user ID or password"
    backoff.failed(EtcdCallFailed(judge(StatusCode.INVALID_ARGUMENT, words, writes=False)), login)
    with pytest.raises(EtcdCallFailed, match="rejects the login"):
        backoff.check(login)
    backoff.check(Login("schedd", "new"))
    now[0] += LoginBackoff.WAIT
    backoff.check(login)
    backoff.failed(EtcdCallFailed(judge(StatusCode.UNAVAILABLE, "", writes=False)), login)
    backoff.check(login)


def test_a_round_visits_each_endpoint_once_from_the_current_one():
    assert list(Ring(3, start=1).round()) == [1, 2, 0]


def test_many_failures_of_one_endpoint_move_on_by_one():
    ring = Ring(3)
    for _ in range(5):
        ring.failed(0)
    assert ring.current == 1


def test_a_failure_of_another_endpoint_changes_nothing():
    ring = Ring(3)
    ring.failed(2)
    assert ring.current == 0


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0"), (b"z", b"{")],
)
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix, end):
    assert end_of(prefix) == end


@pytest.mark.parametrize("key", ["", "leader", "workers/ü/1", "odd\udcff"])
def test_a_key_survives_encoding_and_decoding(key):
    codec = Codec("root/")
    assert codec.name(codec.key(key)) == key
    assert codec.key(key).startswith(b"root/")
