"""Definitions as requests give them."""

from __future__ import annotations

from schedd.core.ids import JobId, new_id
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_pb2


def requested(job: job_pb2.Job) -> JobDefinition:
    """Return the definition of a job that a request creates."""
    return JobDefinition.requested(job, JobId(new_id()), job.namespace or "default")
