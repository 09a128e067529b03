"""What members, workers and labels may be called: judged where they are set, where they are asked
for, and where a certificate is signed for them.
"""

import re
from typing import Final

WORKER: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")
MEMBER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""A host's, or one as workers have."""
LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
"""The key of one."""
LABEL_IN_WORDS: Final = "letters, digits, '.', '_', '-', '/'"
