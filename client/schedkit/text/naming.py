"""Valid names of members, workers and labels, for settings, requests and certificates."""

import re
from typing import Final

WORKER: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")
MEMBER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""The name of a member or worker, such as a host name."""
LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
"""The key of a label."""
LABEL_IN_WORDS: Final = "letters, digits, '.', '_', '-', '/'"
