"""Names of metrics: what the server stores, and the legal name of what a script logs."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

LONGEST = 268
"""Most characters of a name that the server stores."""
LONGEST_LOGGED = 256
"""Most characters of a name that a script logs: `/rank-99999` may follow."""
LEGAL_FORM = (
    f"a name has 1 to {LONGEST_LOGGED} printable characters of any script but the comma, begins "
    "with a letter, a digit or `_` and ends without a space, such as `train/loss`"
)
_UNSTORABLE = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
# The first character: none by which a spreadsheet takes a field for a formula.
_STORABLE = re.compile(f"[^, =+@\\-{_UNSTORABLE}][^,{_UNSTORABLE}]{{0,{LONGEST - 1}}}")
_MARK = "_01234567"
"""An underscore and eight digits of a checksum."""


def is_storable(name: str) -> bool:
    """Return whether the server stores a series of this name.

    It is wider than `is_legal`, whose tables of characters grow with each version of Python. A
    comma divides names in addresses.
    """
    return _STORABLE.fullmatch(name) is not None


def is_legal(name: str) -> bool:
    """Return whether a script's name is stored as it is."""
    return (
        0 < len(name) <= LONGEST_LOGGED
        and (name[0].isalnum() or name[0] == "_")
        and name[-1] != " "
        and name.isprintable()
        and "," not in name
    )


@lru_cache(maxsize=4096)  # every step logs the same names
def legal_name(name: str) -> str:
    """Return the name under which a value is stored: a legal one itself.

    In another one, successive characters that are not legal become `_`, those before the first
    letter or digit are dropped, what is too long is cut, and a checksum of the whole name follows:
    `top-5, in %` becomes `top-5_ in %_18412e97`. So names that differ stay apart, on each rank and
    in each attempt.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"metric name {name!r} is {type(name).__name__}; legal: text")
    if is_legal(name):
        return name
    text = "".join(c if c.isprintable() and c != "," else "," for c in name)
    text = re.sub(",+", "_", text)
    start = next((at for at, character in enumerate(text) if character.isalnum()), len(text))
    checksum = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{text[start:][: LONGEST_LOGGED - len(_MARK)]}_{checksum}"


def quoted(name: str) -> str:
    """Return a name, which has neither commas nor line ends, as a field of CSV (RFC 4180)."""
    return '"' + name.replace('"', '""') + '"' if '"' in name else name
