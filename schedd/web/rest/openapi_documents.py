"""OpenAPI operations of the requests in `documents`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schedd.web.rest.documents import CALLBACK, LONGEST_DELAY, PRIORITIES, TASKS_PATH
from schedd.web.rest.openapi import answered, asked
from schedd.web.rest.openapi_tables import NAMESPACE

_TEXT: Final = {"type": "string", "minLength": 1}
_INSTANT: Final = {"type": ["string", "null"], "format": "date-time"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


OPERATIONS: Final[Mapping[str, Any]] = {
    "/api/v1/jobs": {
        "post": {
            "requestBody": asked(
                {
                    "type": "object",
                    "description": "A job that posts its payload to a URL; other fields of a job"
                    " are allowed, too.",
                    "properties": {
                        "name": _TEXT,
                        "cron": _TEXT,
                        CALLBACK: {"type": "string", "format": "uri"},
                        "priority": {"type": "string", "enum": ["LOW", "MEDIUM", "HIGH"]},
                        "payload": {},
                    },
                    "required": ["name", "cron", CALLBACK],
                }
            ),
            "responses": answered(201, _object(job_id=_TEXT, next_fire_time=_INSTANT)),
        }
    },
    "/api/v1/jobs/{job}/status": {
        "get": {
            "operationId": "getJobStatus",
            "tags": ["Job"],
            "summary": "Get the status of a job",
            "parameters": [
                {"name": "job", "in": "path", "required": True, "schema": _TEXT},
                {"name": "namespace", "in": "query", "schema": NAMESPACE},
            ],
            "responses": answered(
                200,
                _object(
                    job_id=_TEXT,
                    status=_TEXT,
                    last_run=_INSTANT,
                    next_run=_INSTANT,
                    retry_count={"type": "integer", "minimum": 0},
                ),
            ),
        }
    },
    TASKS_PATH: {
        "post": {
            "operationId": "submitTask",
            "tags": ["Run"],
            "summary": "Run a Python handler once",
            "requestBody": asked(
                {
                    "type": "object",
                    "properties": {
                        "taskName": _TEXT,
                        "payload": {},
                        "delayMs": {
                            "type": ["integer", "null"],
                            "minimum": 0,
                            "maximum": LONGEST_DELAY,
                        },
                        "priority": {
                            "description": "1 HIGH, 2 MEDIUM, 3 LOW",
                            "enum": [*PRIORITIES, None],
                        },
                        "customJobId": {**_TEXT, "type": ["string", "null"]},
                        "namespace": {**_TEXT, "type": ["string", "null"]},
                    },
                    "required": ["taskName"],
                    "additionalProperties": False,
                }
            ),
            "responses": answered(202, _object(job_id=_TEXT, run_id=_TEXT)),
        }
    },
}
"""Operations that aren't calls, by path and method."""
