"""Periodic tasks on the clock of a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from server.core.context import Clock
from server.core.periodic import EACH_ROUND, PeriodicTask, PeriodicWork


class Repeated:
    """One task, and the results of its runs."""

    def __init__(
        self,
        clock: Clock,
        run: Callable[[], Any],
        *,
        every: float = EACH_ROUND,
        budget: float = math.inf,
    ) -> None:
        """Repeat a task; by default in each round, with all of its steps."""
        self._begin = run
        self._result: Any = None
        task = PeriodicTask("of_a_test", every, budget, "")
        self._work = PeriodicWork(clock.monotonic, {task: self._run})

    def run(self) -> Any:
        """Run a round; return the result of the completed run, or 0."""
        self._result = 0
        self._work.run_due()
        return self._result

    def _run(self) -> object:
        begun = self._begin()
        if isinstance(begun, Generator):
            return self._to_its_end(begun)
        self._result = begun
        return None

    def _to_its_end(self, steps: Generator[None, None, Any]) -> Generator[None, None, None]:
        self._result = yield from steps
