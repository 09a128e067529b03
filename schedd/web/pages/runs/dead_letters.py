"""The page of dead letters, grouped by job and error; with actions to redrive and discard.

/dead-letters                         the groups, and the redrives
/dead-letters?job=etl                 groups and letters of a job
/dead-letters?fingerprint=…           groups and letters of a kind of error
/dead-letters?job=etl&fingerprint=…   one group and its letters
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.dead_letters import greatest_groups
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking, wrong
from schedkit.records import dataclass
from schedproto.v1 import run_pb2, run_service_pb2

ROWS: Final = 50
GROUPS: Final = 50
"""The largest groups are shown."""
REDRIVES: Final = 10
OF_GROUP: Final = ("job", "fingerprint", "submitted", "until", "count")
"""Fields of a form that identify the letters that its dialog showed."""
NONE: Final = "Nothing was discarded: no open dead letters, except those queued for redrive."


def whose(job: str, *, submitted: bool) -> str:
    if not submitted:
        return job
    return f"{job}, submitted" if job else "submitted runs"


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """A kind of error of a job or of submitted runs; of the latter, `job` may be empty. `queued`:
    letters that a redrive will run again.
    """

    group: run_pb2.DeadLetterGroup

    @property
    def key(self) -> str:
        """Return a unique key, valid as an HTML id."""
        named = json.dumps([self.group.job, self.group.fingerprint, self.group.submitted])
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def whose(self) -> str:
        return whose(self.group.job, submitted=self.group.submitted)

    @property
    def free(self) -> int:
        """Return how many letters aren't queued for redrive."""
        return self.group.count - self.group.queued

    @property
    def all_free(self) -> str:
        """Return the letters that aren't queued for redrive, as the subject of a sentence."""
        of = (
            f"submitted runs named {self.group.job}"
            if self.group.job
            else "submitted runs without a name"
        )
        whose = of if self.group.submitted else self.group.job
        letters = "The 1 dead letter" if self.free == 1 else f"All {self.free:,} dead letters"
        return f"{letters} of {whose} with this error"


@dataclass(frozen=True, slots=True)
class RedriveRow:
    redrive: run_pb2.Redrive

    @property
    def chosen(self) -> str:
        if self.redrive.submitted:
            return whose(self.redrive.job, submitted=True)
        of = "one kind of error" if self.redrive.fingerprint else "all dead letters"
        return self.redrive.job or of

    @property
    def state(self) -> str:
        name = run_pb2.Redrive.State.Name(self.redrive.state)
        return name.removeprefix("STATE_").lower()

    @property
    def share(self) -> float:
        """Return the share of its letters that are done, 0 to 1."""
        done = self.redrive.created + self.redrive.omitted
        return done / self.redrive.total if self.redrive.total else 1.0


async def _read(asked: PageRequest) -> Shown:
    job, fingerprint = asked.query.get("job", ""), asked.query.get("fingerprint", "")
    if asked.query.get("page") and not (job or fingerprint):
        raise wrong(
            "page",
            "isn't valid here: only the dead letters of a job or of a fingerprint have pages",
            "add job or fingerprint, or leave page out",
        )
    async with asked.at_once() as all_:
        groups = all_.read(
            "the groups",
            asked.read(greatest_groups, asked.services, asked.namespace, GROUPS, job, fingerprint),
        )
        redrives = all_.call(
            run_service_pb2.ListRedrivesRequest(namespace=asked.namespace, page_size=REDRIVES),
            run_service_pb2.ListRedrivesResponse,
        )
        letters = all_.read("the letters", _letters_of(asked, job, fingerprint))
    greatest, waiting = groups.result()
    listed = letters.result()
    seen = {
        "groups": tuple(LetterGroup(group) for group in greatest),
        "waiting": waiting,
        "unshown": waiting - sum(group.count for group in greatest),
        "redrives": tuple(RedriveRow(redrive) for redrive in redrives.result().redrives),
        "job": job,
        "fingerprint": fingerprint,
        "letters": tuple(letter.run for letter in listed.dead_letters),
        "next": listed.next_page_token,
    }
    return Shown("Dead letters", seen)


async def _letters_of(
    asked: PageRequest, job: str, fingerprint: str
) -> run_service_pb2.ListDeadLettersResponse:
    if not (job or fingerprint):
        return run_service_pb2.ListDeadLettersResponse()
    request = run_service_pb2.ListDeadLettersRequest(
        namespace=asked.namespace,
        job=job,
        fingerprint=fingerprint,
        page_size=ROWS,
        page_token=asked.query.get("page", ""),
    )
    return await asked.call(request, run_service_pb2.ListDeadLettersResponse)


@taking(*OF_GROUP, "rate", "reason")
async def _redrive(asked: PageRequest) -> Done:
    fields = asked.fields
    request = run_service_pb2.RedriveDeadLettersRequest(
        namespace=asked.namespace,
        group=_chosen(fields),
        until=until_of(fields),
        at_most=count_of(fields),
        rate=rate_of(fields),
        note=fields.get("reason", ""),
        idempotency_key=asked.once,
    )
    redrive = await asked.call(request, run_service_pb2.RedriveDeadLettersResponse)
    done = f"{_letters(redrive.total)} queued for redrive. See the progress under Redrives."
    return Done(done, asked.link("dead-letters"))


@taking(*OF_GROUP, "reason")
async def _discard(asked: PageRequest) -> Done:
    request = run_service_pb2.DiscardDeadLettersRequest(
        namespace=asked.namespace,
        group=_chosen(asked.fields),
        until=until_of(asked.fields),
        at_most=count_of(asked.fields),
        note=asked.fields.get("reason", ""),
    )
    answer = await asked.call(request, run_service_pb2.DiscardDeadLettersResponse)
    done = f"{_letters(answer.discarded)} discarded." if answer.discarded else NONE
    return Done(done, asked.link("dead-letters"))


@taking()
async def _stop(asked: PageRequest) -> Done:
    request = run_service_pb2.StopRedriveRequest(redrive_id=asked.variables["redrive"])
    await asked.call(request, run_pb2.Redrive)
    return Done("The redrive is stopped until it is resumed.", asked.link("dead-letters"))


@taking()
async def _resume(asked: PageRequest) -> Done:
    request = run_service_pb2.ResumeRedriveRequest(redrive_id=asked.variables["redrive"])
    await asked.call(request, run_pb2.Redrive)
    return Done("The redrive was resumed.", asked.link("dead-letters"))


def _chosen(fields: Mapping[str, str]) -> run_service_pb2.ChosenGroup:
    return run_service_pb2.ChosenGroup(
        job=fields.get("job", ""),
        fingerprint=fields.get("fingerprint", ""),
        submitted=fields.get("submitted", "") == "yes",
    )


def until_of(fields: Mapping[str, str]) -> Timestamp | None:
    """Return when the form's newest letter failed; None without one. Raises InvalidArgumentError.
    Pure.
    """
    until, text = Timestamp(), fields.get("until", "")
    if not text:
        return None
    try:
        until.FromJsonString(text)
    except ValueError:
        raise wrong(
            "until",
            f"the page sent {text[:40]!r}, which isn't a valid time",
            "reload the page; nothing was changed",
        ) from None
    return until


def count_of(fields: Mapping[str, str]) -> int:
    """Return how many letters a form showed; 0 without a count. Raises InvalidArgumentError."""
    text = fields.get("count", "")
    if not text:
        return 0
    if not re.fullmatch("[1-9][0-9]{0,17}", text):
        raise wrong(
            "count", f"{text[:40]!r} isn't a valid count", "reload the page; nothing was changed"
        )
    return int(text)


def rate_of(fields: Mapping[str, str]) -> float:
    """Return the typed runs a second; 0 if empty. Raises InvalidArgumentError. Pure."""
    text = fields.get("rate", "") or "0"
    try:
        return float(text)
    except ValueError:
        raise wrong(
            "rate", f"{text[:40]!r} isn't a number", "give a number of runs per second, such as 10"
        ) from None


def _letters(count: int) -> str:
    return "1 dead letter is" if count == 1 else f"{count:,} dead letters are"


PAGE: Final = Page(
    "/dead-letters",
    "Dead letters",
    "dead_letters",
    _read,
    asks=("job", "fingerprint", "page"),
    actions=(
        Action("/dead-letters/redrive", _redrive),
        Action("/dead-letters/discard", _discard),
        Action("/redrives/{redrive}/stop", _stop),
        Action("/redrives/{redrive}/resume", _resume),
    ),
)
