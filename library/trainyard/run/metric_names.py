"""Names of metrics: the legal form, and the legal name of what a script logs."""

from __future__ import annotations

import re
from functools import lru_cache

METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}")
"""What the server stores."""
LONGEST_LOGGED = 88
"""Most characters of a name that a script logs: `/rank-99999` may follow."""
LEGAL_FORM = (
    f"a name has 1 to {LONGEST_LOGGED} characters, letters of ASCII, digits and `_ . / -`, and "
    "begins with a letter or a digit, such as `train/loss`"
)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_./-]+")


@lru_cache(maxsize=4096)  # every step logs the same names
def legal_name(name: str) -> str:
    """Return the name under which a value is stored.

    Characters that are not legal become one `_`; those before the first letter or digit are
    dropped: `val acc (top 5)` becomes `val_acc_top_5`.

    Raises:
        ValueError: no letter or digit is left, or too many characters; the message has the form.
    """
    legal = _ILLEGAL.sub("_", name).lstrip("_./-").rstrip("_")
    if not 0 < len(legal) <= LONGEST_LOGGED:
        raise ValueError(f"metric name {name[:120]!r} cannot be stored: {LEGAL_FORM}")
    return legal
