"""Times at which objects were first seen, in files that the provisioner's processes share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from trainyard.run.atomic import create_file


class FirstTimes:
    """For each object, the time at which a process of the provisioner first saw the object."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """Use a folder that has one file per object."""
        self._folder = folder
        self._clock = clock

    def note(self, uid: str) -> float:
        """Note an object if it is not noted yet; return the seconds since it was noted."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_file(self._folder / uid, repr(self._clock()))
        return self.seconds(uid)

    def seconds(self, uid: str) -> float:
        """Return the seconds since an object was noted; a negative number for an unknown object."""
        try:
            return self._clock() - float((self._folder / uid).read_text(encoding="ascii"))
        except FileNotFoundError:
            return -1.0

    def keep(self, uids: Collection[str]) -> None:
        """Forget all objects except these."""
        for path in self._folder.glob("[!.]*"):  # without the drafts of other processes
            if path.name not in uids:
                path.unlink(missing_ok=True)
