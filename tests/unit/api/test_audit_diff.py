"""Definitions in the audit log: set fields, changed fields, and a limit on their size."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from google.protobuf.duration_pb2 import Duration

from schedd.api import audit_diff
from schedd.runtime.job_codec import JobDefinition
from schedkit.protojson import to_json
from schedproto.v1 import common_pb2, job_pb2
from support.store import job_record


def shown_definition(spec: job_pb2.Job) -> Any:
    record = job_record(due=None)
    stored = replace(record.definition, spec=spec.SerializeToString(deterministic=True))
    return json.loads(audit_diff.definition(JobDefinition.read(stored)))


def test_the_audited_definition_has_the_set_fields_as_job_get_prints_them():
    spec = job_pb2.Job(cron=["@daily"], timeout=Duration(seconds=7), definition_version=3)
    spec.http.url = "http://example.org"
    shown = to_json(spec)
    assert shown_definition(spec) == {key: shown[key] for key in ("cron", "timeout", "http")}


def test_an_audited_edit_has_changed_fields_and_null_for_unset_ones():
    old = job_pb2.Job(cron=["@daily"], timeout=Duration(seconds=7), slots=2)
    new = job_pb2.Job(every=Duration(seconds=60), timeout=Duration(seconds=7), slots=3)
    new.priority = common_pb2.PRIORITY_LOW
    before, after = map(json.loads, audit_diff.differences(old, new))
    assert before == {"cron": ["@daily"], "slots": 2, "every": None, "priority": None}
    assert after == {"cron": None, "slots": 3, "every": "60s", "priority": "LOW"}


def test_a_large_field_is_cut_with_a_note_and_the_others_are_kept():
    spec = job_pb2.Job(shell=job_pb2.ShellAction(argv=["x" * 1_000_000]), slots=2)
    state = shown_definition(spec)
    assert state["slots"] == 2
    assert state["shell"] == {"$cut": spec.shell.ByteSize()}


def test_many_fields_together_are_cut_as_one_is():
    shell = job_pb2.ShellAction(argv=["x" * 5_000])
    spec = job_pb2.Job(slots=2, cron=["y" * 5_000], shell=shell)
    state = shown_definition(spec)
    assert len(json.dumps(state)) < audit_diff.MOST + 200
    assert [one for one in state.values() if isinstance(one, dict) and "$cut" in one]
    assert state["slots"] == 2
