"""Names of metrics: names that the server stores, and names that scripts may log."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from unicodedata import category

LONGEST = 268
"""Maximum length of a stored name, in characters."""
LONGEST_LOGGED = 256
"""Maximum length of a name from a script, in characters; `/rank-99999` may be appended."""
LEGAL_FORM = (
    f"a name has 1 to {LONGEST_LOGGED} printable characters of any script except the comma, starts "
    "with a letter, a digit, `_` or a symbol such as ∇ and ends without a space, as `train/loss`"
)
_UNSTORABLE = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
# The first character must not cause a spreadsheet to read the name as a formula.
_STORABLE = re.compile(f"[^, =+@\\-{_UNSTORABLE}][^,{_UNSTORABLE}]{{0,{LONGEST - 1}}}")
_FORMULAS = "\uff1d\uff0b\uff0d\uff20"
"""Full-width forms of `=+-@`."""
# Joiners are legal in Persian or Hindi words and in emoji. Next to ASCII, they would allow two
# names that look the same.
_JOINERS = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
_MARK = "_01234567"
"""Placeholder with the length of the appended mark: an underscore and eight digits."""


def is_storable(name: str) -> bool:
    """Return whether the server stores a series with this name.

    `is_legal` accepts fewer names, and depends on the character tables of the Python version. A
    comma is illegal, because commas separate names in URLs.
    """
    return _STORABLE.fullmatch(name) is not None


def is_legal(name: str) -> bool:
    """Return whether a name from a script is stored unchanged."""
    return (
        0 < len(name) <= LONGEST_LOGGED
        and _may_begin(name[0])
        and name[-1] != " "
        and _JOINERS.sub("", name).isprintable()
        and "," not in name
    )


def _may_begin(character: str) -> bool:
    """Return whether a name may start with a character: a letter, digit, `_` or non-ASCII
    symbol."""
    if character.isalnum() or character == "_":
        return True
    is_symbol = not character.isascii() and category(character)[0] in "SP"
    return is_symbol and character not in _FORMULAS


@lru_cache(maxsize=4096)  # every step logs the same names
def legal_name(name: str) -> str:
    """Return the name under which a value is stored; a legal name stays unchanged.

    In an illegal name, each sequence of illegal characters becomes `_`, and characters that may not
    start a name are dropped from its start. If the result is too long, it is cut. A checksum of the
    original name is appended: `top-5, in %` becomes `top-5_ in %_18412e97`. So different names stay
    different, and a name has the same form on each rank and in each attempt.

    Raises:
        TypeError: the name is not text.
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
    """Return a name as a CSV field (RFC 4180); the name must not contain commas or line breaks."""
    return '"' + name.replace('"', '""') + '"' if '"' in name else name
