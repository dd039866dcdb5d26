"""Values logged by one process of a program, checked and converted to records."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, SupportsIndex

from trainyard.data import order_digest
from trainyard.run.limits import WarnedNames, legal_step, number_of
from trainyard.run.metric_names import LEGAL_FORM, legal_name
from trainyard.run.records import MAX_RECORD_VALUES, MetricRecord
from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.session_writer import SessionWriter

logger = logging.getLogger("trainyard")

MAX_NAMES = 2000
"""Maximum number of values in one call of `Run.log`; further values are dropped."""
MAX_SERIES = 4000
"""Maximum number of names per process; values with further names are dropped. The server stores
2,000 names and reports that it drops others."""


class StepRecords:
    """Records of one process; each name has at most one value per step, and its steps rise."""

    def __init__(self, place: ProcessPlace) -> None:
        """Start without records."""
        self._place = place
        self._renamed = WarnedNames()
        self._left_out = False
        self._last_steps: dict[str, int] = {}
        self._consumed = -1

    def log(
        self,
        writer: SessionWriter | None,
        values: Mapping[str, SupportsFloat],
        *,
        step: int,
        per_rank: bool,
    ) -> Mapping[str, float]:
        """Check the values; queue and return those whose names have no value yet for this step or a
        later step.

        With `per_rank`, the rank is appended to each name.

        Args:
            writer: queues the records; None if nothing is written.
            values: values by name.
            step: completed optimizer steps.
            per_rank: whether to append the rank of this process to the names.

        Raises:
            TypeError: a name is not text, or a value is not a number.
        """
        if len(values) > MAX_NAMES:
            self._warn_of_many(values)
            values = dict(itertools.islice(values.items(), MAX_NAMES))
        ending = f"/rank-{self._place.rank}" if per_rank else ""
        legal = {name: legal_name(name) + ending for name in values}
        numbers: dict[str, float] = {}
        for name, value in values.items():
            try:
                numbers[name] = number_of(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise TypeError(
                    f"the value of {name[:120]!r} is no number but {type(value).__name__}: {error}"
                ) from None
        if writer is None:
            return {}
        # After all checks, because a name accepts no other value for this step afterwards.
        new = [name for name in numbers if self._rises(legal[name], step)]
        for start in range(0, len(new), MAX_RECORD_VALUES):
            part = new[start : start + MAX_RECORD_VALUES]
            self._add(writer, step, values={legal[name]: numbers[name] for name in part})
        self._warn_of_renamed({name: legal[name] for name in new if legal[name] != name + ending})
        return {name + ending: numbers[name] for name in new}

    def _warn_of_many(self, values: Mapping[str, SupportsFloat]) -> None:
        if not self._left_out:
            self._left_out = True
            text = "log() with %s values: those after the first %s are left out, %r and on"
            first = next(itertools.islice(values, MAX_NAMES, None))
            logger.warning(text, f"{len(values):,}", f"{MAX_NAMES:,}", first)

    def _warn_of_renamed(self, names: Mapping[str, str]) -> None:
        for name, legal in names.items():
            if self._renamed.add(name):
                logger.warning("metric %r is stored as %r: %s", name, legal, LEGAL_FORM)

    def consume(
        self,
        writer: SessionWriter | None,
        step: SupportsIndex,
        *,
        ids: Iterable[SupportsIndex | str | bytes],
        positions: Iterable[SupportsIndex] | None,
    ) -> None:
        """Queue the digest of the samples of a step.

        Raises:
            ValueError: `step` is outside 0 to 1,000,000,000 or not above the step of the previous
                call, or the numbers of ids and positions differ.
            TypeError: a position is not an integer, or an id is not an integer, text or bytes.
        """
        step = legal_step(step)
        if step <= self._consumed:
            raise ValueError(
                f"step={step}: step {self._consumed} was given already; all ids of a step go into "
                "one call, and steps must rise"
            )
        listed = list(ids)
        digest = order_digest([step] * len(listed) if positions is None else positions, listed)
        self._consumed = step
        if writer is not None:
            self._add(writer, step, values={}, digest=digest)

    def mark(self, writer: SessionWriter, step: int) -> None:
        """Queue a record without values; it marks this rank's values up to the saved step as
        complete.

        A single process needs no such record, because its values follow each other in one file.
        """
        if self._place.world_size > 1:
            self._add(writer, step, values={})

    def _add(
        self,
        writer: SessionWriter,
        step: int,
        *,
        values: dict[str, float],
        digest: str | None = None,
    ) -> None:
        writer.add(
            MetricRecord(
                step=step,
                time=time.time(),
                values=values,
                data_digest=digest,
                ranks=self._place.world_size,
            )
        )

    def _rises(self, name: str, step: int) -> bool:
        """Note a step of a name; return False for a name with a value for this step or a later one,
        and for a new name after `MAX_SERIES` names."""
        last = self._last_steps.get(name, -1)
        if step <= last or (last < 0 and len(self._last_steps) >= MAX_SERIES):
            return False
        self._last_steps[name] = step
        return True
