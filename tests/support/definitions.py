"""Definitions as requests give them, and as the cache holds them."""

from __future__ import annotations

from datetime import datetime

from schedd.core.ids import Id, JobId, new_id
from schedd.core.jobs.definition import Definition
from schedd.core.runs.records import NEVER_EDITED
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.runtime.definition_texts import CachedDefinition, DefinitionText
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_pb2

JOB = JobId(Id.from_int(1))


def requested(job: job_pb2.Job) -> JobDefinition:
    """Return the definition of a job that a request creates."""
    return JobDefinition.requested(job, JobId(new_id()), job.namespace or "default")


def cached_definition(
    definition: Definition,
    compiled: CompiledSchedule | None = None,
    spec: job_pb2.Job | None = None,
    edited_at: datetime = NEVER_EDITED,
) -> CachedDefinition:
    """Return the definition of a job `j` with a text of its own."""
    if compiled is None:
        bounds, exclude = definition.bounds, definition.exclude
        compiled = compiled_schedule.compile(definition.schedule, "default/j", JOB, bounds, exclude)
    text = DefinitionText(definition, job_pb2.Job() if spec is None else spec, compiled)
    return CachedDefinition(text, compiled, "j", edited_at)
