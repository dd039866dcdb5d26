"""Detects the other project named `trainyard`, whose wheel overwrites files of this library."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

FOREIGN = "trainyard"
"""Distribution of another project with a package of our package's name (docs/adr/0015)."""


@dataclass(frozen=True)
class ForeignFiles:
    """The other project, as installed in this environment."""

    version: str
    file: str
    """A file of our package that the other distribution owns, relative to site-packages."""


def foreign_files() -> ForeignFiles | None:
    """Return the other project if it has installed files into our package, else None."""
    try:
        found = distribution(FOREIGN)
    except PackageNotFoundError:
        return None
    # An editable installation of our own from before 1.0, which had this name, owns no such file.
    owned = "trainyard/__init__.py"
    if owned not in map(str, found.files or ()):
        return None
    return ForeignFiles(version=found.version, file=owned)
