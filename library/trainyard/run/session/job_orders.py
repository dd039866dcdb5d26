"""Orders of people to a running script: stops, saves and other requests."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.run.control_files import should_stop
from trainyard.run.directory import RunDirectory
from trainyard.run.records import ProgramAnswer
from trainyard.run.session.open_request import OpenRequest, open_requests
from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.shared_decision import SharedDecision


class JobOrders:
    """Orders to a job, as received by one process of its program."""

    def __init__(self, files: RunDirectory, place: ProcessPlace) -> None:
        self._files = files
        self._leads = place.rank == 0
        self._decision = SharedDecision(place)
        self._stop = self._save = False
        self._saves_itself = False
        self.answers: set[ProgramAnswer] = set()
        """Orders and requests that the program supports, as shown by its calls."""

    def should_stop(self) -> bool:
        """Return whether the script must save and end."""
        self.answers.add("stop")
        self._receive()
        self._decision.send(self._flags())
        return self._stop

    def should_save(self, step: int) -> bool:
        """Return whether a save is requested; on rank 0, also respond to the request."""
        self._saves_itself = True
        self.answers.add("save")
        self._receive()
        due, self._save = self._save, False
        if due and self._leads:
            # Respond before the next flags are read, so that a request is returned only once.
            for request in self._requests("save"):
                request.answer(f"the program saves at step {step}", step=step)
        self._decision.send(self._flags())
        return due

    def request(self) -> OpenRequest | None:
        """On rank 0, return the oldest open request, or None; on other ranks, return None."""
        if not self._leads:
            return None
        kinds: tuple[ProgramAnswer, ...] = ("profile", "memory_snapshot")
        if not self._saves_itself:
            kinds = ("save", *kinds)
        self.answers.update(kinds)
        return next(self._requests(*kinds), None)

    def _receive(self) -> None:
        stop, save = self._decision.receive(self._flags)
        self._stop |= stop
        self._save |= save

    def _flags(self) -> tuple[bool, bool]:
        """On rank 0, return whether to stop and whether `should_save` has an open request.

        On other ranks, both flags are False.
        """
        if not self._leads:
            return False, False
        save = self._saves_itself and next(self._requests("save"), None) is not None
        return should_stop(self._files), save

    def _requests(self, *kinds: ProgramAnswer) -> Iterator[OpenRequest]:
        return (each for each in open_requests(self._files) if each.kind in kinds)
