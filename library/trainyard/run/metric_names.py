"""Names of metrics: the legal form, and the legal names of what one run logs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import groupby

LONGEST = 100
"""Most characters of a name that the server stores."""
LONGEST_LOGGED = 88
"""Most characters of a name that a script logs: `/rank-99999` may follow."""
LEGAL_FORM = (
    f"a name has 1 to {LONGEST_LOGGED} printable characters of any script but the comma, begins "
    "with a letter or a digit and ends without a space, such as `train/loss`"
)
MOST_LEARNED = 10_000
"""Names that a run logs; values of further ones are dropped."""


def is_legal(name: str, *, longest: int = LONGEST) -> bool:
    """Return whether the server stores a series of this name.

    A comma divides names in addresses; a name of printable characters is one line everywhere.
    """
    return (
        0 < len(name) <= longest
        and name[0].isalnum()
        and name[-1] != " "
        and name.isprintable()
        and "," not in name
    )


def legal_name(name: str) -> str:
    """Return the legal form of a name.

    Successive characters that are not legal become one `_`; those before the first letter or digit
    and spaces at the end are dropped: `_top-5, in %` becomes `top-5_ in %`.

    Raises:
        ValueError: no letter or digit is left, or too many characters; the message has the form.
    """
    if is_legal(name, longest=LONGEST_LOGGED):
        return name
    parts = groupby(name, key=lambda character: character.isprintable() and character != ",")
    legal = "".join("".join(part) if fits else "_" for fits, part in parts)
    start = next((at for at, character in enumerate(legal) if character.isalnum()), len(legal))
    legal = legal[start:].rstrip(" ")
    if not 0 < len(legal) <= LONGEST_LOGGED:
        raise ValueError(f"metric name {name[:120]!r} cannot be stored: {LEGAL_FORM}")
    return legal


def unique_name(name: str, taken: Container[str], *, longest: int) -> str:
    """Return a name that is not taken: itself, or with a number from 2 at its end."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: longest - 1 - len(str(number))]}_{number}"
    return free


class LegalNames:
    """The legal names of what one run logs: each name has one, and no two names share it."""

    def __init__(self, *, warn: Callable[[str], None] = lambda _: None) -> None:
        """Begin without names; `warn` is called once for each that could not have its own form."""
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._warn = warn

    def __getitem__(self, name: str) -> str | None:
        """Return the legal name of a learned name; None above `MOST_LEARNED`."""
        return self._names.get(name)

    def learn(self, names: Iterable[str]) -> None:
        """Choose legal names for those that have none yet; names that are legal come first.

        Raises:
            ValueError: a name has no legal form; none of these is learned then.
        """
        new = {name: legal_name(name) for name in names if name not in self._names}
        for name, legal in sorted(new.items(), key=lambda item: item[0] != item[1]):
            if len(self._names) >= MOST_LEARNED:
                return
            free = unique_name(legal, self._taken, longest=LONGEST_LOGGED)
            if free != legal:
                self._warn(f"metric {name!r} is stored as {free!r}: {legal!r} is another one")
            self._names[name] = free
            self._taken.add(free)
