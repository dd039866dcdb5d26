"""Names of metrics: what the server stores, and the legal name of what a script logs."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from unicodedata import category

LONGEST = 268
"""Most characters of a name that the server stores."""
LONGEST_LOGGED = 256
"""Most characters of a name that a script logs: `/rank-99999` may follow."""
LEGAL_FORM = (
    f"a name has 1 to {LONGEST_LOGGED} printable characters of any script but the comma, begins "
    "with a letter, a digit, `_` or a symbol such as ∇ and ends without a space, as `train/loss`"
)
_UNSTORABLE = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
# The first character: none by which a spreadsheet takes a field for a formula.
_STORABLE = re.compile(f"[^, =+@\\-{_UNSTORABLE}][^,{_UNSTORABLE}]{{0,{LONGEST - 1}}}")
_FORMULAS = "\uff1d\uff0b\uff0d\uff20"
"""The wide forms of `=+-@`."""
# Within words of Persian or Hindi, and within emoji; next to ASCII they would be a name's double.
_JOINERS = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
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
        and _may_begin(name[0])
        and name[-1] != " "
        and _JOINERS.sub("", name).isprintable()
        and "," not in name
    )


def _may_begin(character: str) -> bool:
    """Return whether a legal name may begin so: as a word, or with a symbol beyond ASCII."""
    if character.isalnum() or character == "_":
        return True
    is_symbol = not character.isascii() and category(character)[0] in "SP"
    return is_symbol and character not in _FORMULAS


@lru_cache(maxsize=4096)  # every step logs the same names
def legal_name(name: str) -> str:
    """Return the name under which a value is stored: a legal one itself.

    In another one, successive characters that are not legal become `_`, those before the first
    that may begin a name are dropped, what is too long is cut, and a checksum of the whole name
    follows: `top-5, in %` becomes `top-5_ in %_18412e97`. So names that differ stay apart, on each
    rank and in each attempt.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"metric name {name!r} is {type(name).__name__}; legal: text")
    if is_legal(name):
        return name
    text = "".join(c if c.isprintable() and c != "," else "," for c in name)
    text = re.sub(",+", "_", text)
    begins = (at for at, c in enumerate(text) if c != "_" and _may_begin(c))
    start = next(begins, len(text))
    checksum = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{text[start:][: LONGEST_LOGGED - len(_MARK)]}_{checksum}"


def quoted(name: str) -> str:
    """Return a name, which has neither commas nor line ends, as a field of CSV (RFC 4180)."""
    return '"' + name.replace('"', '""') + '"' if '"' in name else name
