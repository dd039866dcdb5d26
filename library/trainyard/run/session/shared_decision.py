"""Flags of rank 0 that all ranks receive, by a broadcast that no step waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from trainyard.run.session.process_place import ProcessPlace


class SharedDecision:
    """Two flags with the same values on all ranks: rank 0's flags at the previous call.

    All ranks must make the same calls in the same order: `receive`, then `send`. If there
    are several processes, the first call creates a gloo group for the flags. The script must have
    initialised `torch.distributed` before this call.
    """

    def __init__(self, place: ProcessPlace) -> None:
        self._leads = place.rank == 0
        self._alone = place.world_size == 1
        self._size = place.world_size
        self._group: Any = None
        self._flags: Any = None
        self._work: Any = None

    def receive(self, own: Callable[[], tuple[bool, bool]]) -> tuple[bool, bool]:
        """Wait for the flags from the previous call and return them; the first call returns False.

        If there is only one process, return its current flags, from `own`, instead.

        Raises:
            RuntimeError: there are several processes, but torch.distributed is not initialised.
        """
        if self._alone:
            return own()
        if self._group is None:
            self._group = self._distributed().new_group(backend="gloo")
        if self._work is None:
            return False, False
        self._work.wait()
        first, second = self._flags.tolist()
        return bool(first), bool(second)

    def send(self, flags: tuple[bool, bool]) -> None:
        """Start the broadcast of these flags; only the flags of rank 0 are used."""
        if self._alone:
            return
        torch = sys.modules["torch"]
        self._flags = torch.tensor(flags if self._leads else (False, False), dtype=torch.uint8)
        self._work = self._distributed().broadcast(
            self._flags, src=0, group=self._group, async_op=True
        )

    def _distributed(self) -> Any:
        found = sys.modules.get("torch.distributed")
        if found is None or not found.is_available() or not found.is_initialized():
            raise RuntimeError(
                f"{self._size} processes need one answer, and torch.distributed is not "
                "initialised: call torch.distributed.init_process_group before should_stop and "
                "should_save, or start one process"
            )
        return found
