"""One save under way, as the thread sees it that trains."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainyard.protocol.manifest import Manifest, TrainState


class Save:
    """What becomes of a save: its tensors are staged, then it is committed or has failed."""

    def __init__(self, state: TrainState, *, kind: str) -> None:
        """Begin nothing; `run` does.

        Args:
            state: counters of the step that is saved.
            kind: why it is saved.
        """
        self.state = state
        self.kind = kind
        self._staged = threading.Event()
        self._ended = threading.Event()
        self._manifest: Manifest | None = None
        self._error: BaseException | None = None

    @property
    def staged(self) -> bool:
        """Whether the tensors may change."""
        return self._staged.is_set()

    @property
    def ended(self) -> bool:
        """Whether it is committed or has failed, on this rank."""
        return self._ended.is_set()

    def mark_staged(self) -> None:
        """Say that the tensors may change."""
        self._staged.set()

    def wait_staged(self) -> None:
        """Wait until the tensors may change; a save that failed needs them no more."""
        self._staged.wait()

    def result(self) -> Manifest:
        """Wait for its end and return what was committed.

        Raises:
            OutrunError: a newer attempt has raised the fence; nothing is committed.
            CheckpointError: a rank could not write; the text names path and cause.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._manifest is not None
        return self._manifest

    def run(self, action: Callable[[], Manifest]) -> None:
        """Do the work, in whichever thread; what it raises is kept for `result`."""
        try:
            self._manifest = action()
        except BaseException as error:  # noqa: BLE001 -- DCP's own exception is no `Exception`
            self._error = error
        finally:
            self._staged.set()
            self._ended.set()
