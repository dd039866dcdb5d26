"""Replacement for `config` and `summary` of wandb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from trainyard.run.session.run_facts import items_of


class Fields(MutableMapping[str, Any]):
    """`config` or `summary`: values that can be read and set as items and as attributes.

    Args:
        begin: initial values.
        facts: facts of the run, which also receive the values that the script sets.
    """

    def __init__(self, begin: Mapping[str, Any], facts: MutableMapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(begin))
        object.__setattr__(self, "_facts", facts)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._facts[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._facts.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"no value {name!r}; there are: {', '.join(self) or 'none'}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, *given: Any, allow_val_change: bool = True, **named: Any) -> None:
        """Set several values from a mapping, or from an object such as argparse's namespace."""
        del allow_val_change  # values may always change here
        for each in (*map(items_of, given), named):
            for key, value in each.items():
                self[key] = value

    def setdefaults(self, given: Mapping[str, Any]) -> None:
        """Set only the values that are not set yet."""
        for key, value in given.items():
            self.setdefault(key, value)

    def note_logged(self, numbers: Mapping[str, float]) -> None:
        """Keep the last logged values; update a fact only if the script itself has set this name
        before."""
        self._values.update(numbers)
        for name in numbers:
            if name in self._facts:
                self._facts[name] = numbers[name]

    def as_dict(self) -> dict[str, Any]:
        """Return all values as a dict."""
        return dict(self._values)
