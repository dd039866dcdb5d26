"""`config` and `summary` of wandb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any


class Fields(MutableMapping[str, Any]):
    """`config` or `summary`: values that are items and attributes alike."""

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"no value {name!r}; there are: {', '.join(self) or 'none'}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, *given: Any, allow_val_change: bool = True, **named: Any) -> None:
        """Set several values: of a mapping, or of an object such as that of argparse."""
        del allow_val_change  # a value may change here
        for one in given:
            self._values.update(one if isinstance(one, Mapping) else vars(one))
        self._values.update(named)

    def setdefaults(self, given: Mapping[str, Any]) -> None:
        """Set those values that are not set."""
        for key, value in given.items():
            self._values.setdefault(key, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self._values)
