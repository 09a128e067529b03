"""The source of a change, in the audit log: `ADDRESS [token:ID] [request:WORDS]`.

A token's name is free text, and may equal another person's name. So the token's id is shown beside
it.
"""

from typing import Final

_BY: Final = " token:"
_REQUEST: Final = " request:"
SHOWN: Final = 8
"""Characters of a token's id that people see."""


def token_of(source: str) -> str:
    """Return the id of the token that made the change; empty without a token. The caller's own name
    of a request is never read as a token.
    """
    return source.partition(_REQUEST)[0].partition(_BY)[2]


def actor_with_token(actor: str, source: str) -> str:
    """Return the actor for people, with the token, if there was one."""
    token = token_of(source)
    return f"{actor} (token {token[:SHOWN]})" if token else actor
