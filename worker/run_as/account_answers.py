"""Answers of a node about Unix accounts, for its heartbeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from worker.run_as.unix_account import answer_of

logger = logging.getLogger(__name__)


class AccountAnswers:
    """Looks accounts up in a thread, because a directory service may respond after minutes."""

    def __init__(self, look: Callable[[str], int | str] = answer_of) -> None:
        self._look = look
        self._thread: threading.Thread | None = None
        self.found: Mapping[str, int | str] = {}
        """User id of each account, or why the node cannot run jobs under it."""

    def refresh(self, names: Collection[str]) -> None:
        """Start to look all accounts up again, unless an earlier lookup still runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(
            target=self._work, args=(tuple(names),), name="accounts", daemon=True
        )
        self._thread.start()

    def _work(self, names: tuple[str, ...]) -> None:
        try:
            self.found = {name: self._look(name) for name in names}
        except Exception:
            logger.exception("accounts cannot be looked up")  # the former answers stay
