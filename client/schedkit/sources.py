"""Where a change came from, as the audit has it: `ADDRESS [token:ID] [request:WORDS]`.

A token bears the name that its maker gave it, so it may be somebody else's: who is shown beside
the name is the token.
"""

from typing import Final

_BY: Final = " token:"
_REQUEST: Final = " request:"
SHOWN: Final = 8
"""Characters of a token's id, which tell it from others."""


def token_of(source: str) -> str:
    """The id of the token that it was done with; empty: with none. What a caller calls its request
    is no token, whatever it says.
    """
    return source.partition(_REQUEST)[0].partition(_BY)[2]


def actor_told(actor: str, source: str) -> str:
    """Who it was, for people: with the token, if it was one."""
    token = token_of(source)
    return f"{actor} (token {token[:SHOWN]})" if token else actor
