"""`config`, `summary` and tags of a run, which the server stores as facts of the job."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.fact_types.fact_section import FactSection, legal_tags
from trainyard.run.limits import WarnedNames

logger = logging.getLogger("trainyard")


class RunValues(MutableMapping[str, Any]):
    """Values of a run by name; each value that is set becomes a fact of the job.

    Values in nested mappings get names such as `optimizer.lr`. A change inside a value is not
    detected, so a changed value must be set again.
    """

    def __init__(self, begin: Mapping[str, Any], store: Callable[[str, Any, bool], None]) -> None:
        self._values = dict(begin)
        self._store = store

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._store(str(key), value, True)

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._store(str(key), None, False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class FactBook:
    """Facts of one run, for all threads of the process that created the run.

    In a forked process, calls have no effect, because the lock may be held there for ever.

    Args:
        arguments: initial configuration, which the job already has.
        changed: called after each change.
    """

    def __init__(self, arguments: Mapping[str, Any], changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.RLock()  # a signal handler may set a value during a set
        self._pid = os.getpid()
        self._warned = WarnedNames()
        self._tags: tuple[str, ...] = ()
        self._sections = {
            name: FactSection(partial(self._warn, name)) for name in ("config", "summary")
        }
        for argument, value in arguments.items():
            self._sections["config"].put(argument, value)
        self.config = RunValues(arguments, self._storer("config"))
        self.summary = RunValues({}, self._storer("summary"))

    def add_tags(self, tags: Iterable[object]) -> None:
        """Add tags, up to `MAX_TAGS` in all; an illegal tag becomes the closest legal tag."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            before = self._tags
            self._tags = legal_tags((*before, *map(str, tags)))
        if self._tags != before:
            self._changed()

    def record(self) -> RunFacts:
        """Return the current facts as a record."""
        with self._lock:
            config, summary = (section.facts() for section in self._sections.values())
            return RunFacts(config=config, summary=summary, tags=self._tags)

    def _storer(self, section: str) -> Callable[[str, Any, bool], None]:
        def store(name: str, value: Any, is_set: bool) -> None:
            if os.getpid() != self._pid:
                return
            with self._lock:
                own = self._sections[section]
                changed = own.put(name, value) if is_set else own.drop(name)
            if changed:
                self._changed()

        return store

    def _warn(self, section: str, name: str, why: str) -> None:
        if self._warned.add(f"{section} {name}"):
            logger.warning("%s %r is left out of the facts of the job: %s", section, name[:80], why)


def items_of(given: object) -> Mapping[str, Any]:
    """Return the named values of a mapping, or of an object such as argparse's namespace.

    Raises:
        TypeError: the object has no named values.
    """
    return given if isinstance(given, Mapping) else vars(given)
