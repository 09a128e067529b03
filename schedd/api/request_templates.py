"""Check equal requests of a batch once: those that differ only in names and keys.

    request ─▶ without its name and keys ─▶ the same as an earlier one?
                                              ├ yes: only its name and keys are checked
                                              └ no: checked in full, and kept as a template

Invariants
- A request whose name or keys could be rejected is checked in full: its error is that of a single
  call.
- A template depends on nothing that differs between its requests.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.api.definitions import validation
from schedd.api.request_bounds import LONGEST_KEY

Request = TypeVar("Request", bound=Message)
Template = TypeVar("Template")

KEYS: Final = ("idempotency_key", "request_id")
"""Fields in which a request differs from its repetition, and from equal ones."""

LARGEST: Final = 64 * 1024
"""Bytes of a request that is kept as a template: far below every limit of its size."""


def _is_plain(request: Message, key: str) -> bool:
    """Return whether a key is surely within its bounds."""
    text: str = getattr(request, key)
    return len(text) <= LONGEST_KEY and text.isprintable()


class RequestTemplates(Generic[Request, Template]):
    """The checked requests of one batch."""

    def __init__(
        self, split: Callable[[Request], tuple[str, Request]], *, nameless: bool = False
    ) -> None:
        """`split` returns a request's name, and a copy without name and keys. `nameless`: the name
        may be empty.
        """
        self._split = split
        self._nameless = nameless
        self._known: dict[bytes, Template] = {}

    def find(self, request: Request) -> Template | None:
        """Return what is known of the request; None: it must be checked in full."""
        if not self._known:
            return None
        name, common = self._split(request)
        template = self._known.get(common.SerializeToString())
        named = (not name and self._nameless) or not any(validation.check_name(name))
        return template if named and all(_is_plain(request, key) for key in KEYS) else None

    def add(self, request: Request, template: Template) -> None:
        """Keep what is known of a request that was checked in full."""
        _, common = self._split(request)
        content = common.SerializeToString()
        if len(content) <= LARGEST:
            self._known[content] = template
