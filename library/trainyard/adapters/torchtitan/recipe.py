"""Facts that determine the order of a recipe's data, and a wrapper for the configs of components.

The wrapper replaces the method `build` of a config.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LOADING_FIELDS = frozenset({"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"})
"""Fields of a loader's config that do not affect the order of its samples."""
PROBE = "The quick brown fox jumps over 13 lazy dogs; naïve café, 日本語, x = f(y) + 2.5e-3\n"
"""Text whose tokens usually differ between tokenizers with different vocabularies or merges."""


class BuiltBy:
    """Wraps the config of a component, and replaces only the method `build` of the config."""

    def __init__(self, config: Any, build: Callable[..., Any]) -> None:
        self._config, self._build = config, build

    def build(self, **arguments: Any) -> Any:
        """Return the component."""
        return self._build(self._config, **arguments)

    def traverse(self, kind: type, **options: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """Yield the nested configs of a class, as torchtitan does to apply overrides.

        An override of the wrapped config replaces the config; `build` stays the same.
        """
        for name, found, parent, key in self._config.traverse(kind, **options):
            yield (name, found, self, "_config") if parent is None else (name, found, parent, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def order_facts(
    config: Any, *, global_batch_size: int, seq_len: int, tokenizer: Any = None
) -> dict[str, Any]:
    """Return what the samples of a step depend on, as values of JSON.

    Args:
        config: the loader's config.
        global_batch_size: sequences in one step, over all ranks.
        seq_len: tokens in a sequence.
        tokenizer: torchtitan's tokenizer; None without one.
    """
    facts = {
        "training.global_batch_size": global_batch_size,
        "training.seq_len": seq_len,
        "dataloader": _value(type(config)),
    }
    for field in dataclasses.fields(config):
        if field.name not in LOADING_FIELDS:
            facts[f"dataloader.{field.name}"] = _value(getattr(config, field.name))
    if tokenizer is not None:
        facts["tokenizer"] = _tokenizer_digest(tokenizer)
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def _tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary size and its tokens for `PROBE`."""
    tokens = tokenizer.encode(PROBE)
    facts = [tokenizer.get_vocab_size(), list(map(int, tokens))]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def may_end(config: Any) -> bool:
    """Return whether a stream may end; if so, the ranks must agree on the last step.

    Raises:
        ValueError: streams end in a way that a resume could not reproduce.
    """
    sources = getattr(config, "sources", None) or [config]
    if all(getattr(source, "infinite", False) for source in sources):
        return False
    if getattr(config, "stopping_strategy", None) == "all_exhausted":
        raise ValueError(
            "dataloader.stopping_strategy='all_exhausted': legal is 'on_first_exhausted', or "
            "sources with infinite=True, because torchtitan's state of a mixture does not contain "
            "which sources have ended"
        )
    return True


def check_order(expected: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose order of the data differs from the recipe's order.

    Raises:
        ValueError: a fact differs; the message has its name and both values.
    """
    for name in sorted(expected.keys() | saved.keys()):
        ours, theirs = expected.get(name), saved.get(name)
        if ours != theirs:
            raise ValueError(
                f"{name}={ours!r} differs from {name}={theirs!r} of the checkpoint: its streams "
                "would continue with other samples"
            )


def _value(value: Any) -> Any:
    """Return a value of a config as JSON; a function, class or other object becomes a name."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _value(getattr(value, name)) for name in names if name not in LOADING_FIELDS}
    if isinstance(value, Mapping):
        return {str(name): _value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    if isinstance(value, set | frozenset):  # in hash order, which differs between processes
        return sorted(map(_value, value), key=json.dumps)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    # The text of such an object may contain its address.
    return f"{type(value).__module__}.{type(value).__qualname__}"
