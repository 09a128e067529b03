"""What may be registered as a handler."""

from __future__ import annotations

import functools

import pytest

from schedclient.handlers import handler


def test_a_handler_that_cant_be_called_with_payload_and_ctx_is_refused_when_it_is_registered():
    def alone(ctx):
        return ctx

    def too_many(payload, ctx, more):
        return payload, ctx, more

    for function in (alone, too_many):
        with pytest.raises(ValueError, match=r"is called as \w+\(payload, ctx\)"):
            handler(function)


def test_a_handler_may_have_more_with_defaults_or_be_written_in_c():
    def defaults(payload, ctx, retries=3):
        return payload, ctx, retries

    assert handler(defaults) is defaults
    assert handler("largest")(max) is max


def test_a_wrapped_handler_is_judged_by_what_is_called_not_by_what_it_wraps():
    def with_database(payload, ctx, database):
        return payload, ctx, database

    @functools.wraps(with_database)
    def bound(payload, ctx):
        return with_database(payload, ctx, "the database")

    assert handler("bound")(bound) is bound


def test_a_wrapper_that_takes_too_little_is_refused_whatever_it_wraps():
    def whole(payload, ctx):
        return payload, ctx

    @functools.wraps(whole)
    def alone(payload):
        return whole(payload, None)

    with pytest.raises(ValueError, match="is called as alone"):
        handler("alone")(alone)
