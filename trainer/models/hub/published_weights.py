"""Names of a hub model's weights in published files, by the conversions of `transformers`.

A published tensor is a whole parameter, or a part of one: `transformers` joins the matrices of
experts, for example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from trainer.errors import LaunchError
from trainer.models.hub.published_tensor import PublishedTensor, Shape, whole


class PublishedNames:
    """The published tensors of each parameter and buffer of a model of transformers.

    Args:
        causal: model of transformers, on the meta device.
        field: field and value in the spec, for messages.
    """

    def __init__(self, causal: Any, *, field: str) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        self._causal, self._field = causal, field
        conversions = get_model_conversion_mapping(causal)
        self._converters = [each for each in conversions if isinstance(each, WeightConverter)]
        self._renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        self.tensors: dict[str, Tensor] = causal.state_dict()
        """Tensors of the model without memory, by name; a tied one has several names."""
        self.ties: dict[str, str] = dict(causal.all_tied_weights_keys)
        """First name of each tied tensor, by its other names."""
        self._ignored = [
            re.compile(pattern)
            for pattern in (
                *(causal._keys_to_ignore_on_load_unexpected or ()),
                r"rotary_emb\.inv_freq$",
            )
        ]

    def is_ignored(self, name: str) -> bool:
        """Return whether the architecture ignores a published tensor."""
        return any(pattern.search(name) for pattern in self._ignored)

    def written(self) -> dict[str, Shape]:
        """Return the shape of each tensor that an export writes, by published name."""
        from transformers.core_model_loading import revert_weight_conversion

        tensors = {name: t for name, t in self.tensors.items() if name not in self.ties}
        with torch.device("meta"):
            published = revert_weight_conversion(self._causal, tensors)
        return {name: tuple(tensor.shape) for name, tensor in published.items()}

    def find(self, published: Mapping[str, Shape]) -> dict[str, tuple[PublishedTensor, ...]]:
        """Map each model name to its published tensors, () if incomplete; omit names without any.

        Raises:
            LaunchError: the library would convert a tensor in a way that slices cannot express.
        """
        from transformers.core_model_loading import dot_natural_key, rename_source_key

        sources: dict[str, dict[str | None, list[str]]] = {}
        for name in sorted(published, key=dot_natural_key):
            target, pattern = rename_source_key(
                name,
                self._renamings,
                self._converters,
                self._causal.base_model_prefix,
                self.tensors,
            )
            if target in self.tensors:
                sources.setdefault(target, {}).setdefault(pattern, []).append(name)
        return {
            target: self._joined(target, by_pattern, published)
            for target, by_pattern in sources.items()
        }

    def _joined(
        self, target: str, by_pattern: dict[str | None, list[str]], published: Mapping[str, Shape]
    ) -> tuple[PublishedTensor, ...]:
        shape = tuple(self.tensors[target].shape)
        (pattern, *_) = by_pattern
        if pattern is None:
            name = by_pattern[None][0]
            return whole(name, published[name])
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        kinds = [(type(each).__name__, getattr(each, "dim", None)) for each in converter.operations]
        ordered = [by_pattern.get(each, []) for each in converter.source_patterns]
        if not all(ordered):  # `covers` then finds the parameter incomplete
            return ()
        stacks = kinds == [("MergeModulelist", 0)] and len(ordered) == 1
        if stacks or kinds == [("MergeModulelist", 0), ("Concatenate", 1)]:
            return _stacked(ordered, shape, published)
        if kinds == [("Concatenate", 0)]:
            return _concatenated(list(chain.from_iterable(ordered)), shape, published)
        raise LaunchError(
            f"{self._field}: transformers converts {by_pattern[pattern][0]} by "
            f"{', '.join(name for name, _ in kinds)}, which needs the whole tensor; legal: no "
            "model.initial_weights, or weights saved by another version of the library"
        )


def _stacked(
    ordered: list[list[str]], shape: Shape, published: Mapping[str, Shape]
) -> tuple[PublishedTensor, ...]:
    """Place tensors: a parameter's dimension 0 stacks one list, and dimension 1 joins the lists."""
    found = []
    start = 0
    for names in ordered:
        rows = published[names[0]][0]
        rest = tuple(slice(0, size) for size in shape[2:])
        found += [
            PublishedTensor(name, (index, slice(start, start + rows), *rest))
            for index, name in enumerate(names)
        ]
        start += rows
    return tuple(found)


def _concatenated(
    names: list[str], shape: Shape, published: Mapping[str, Shape]
) -> tuple[PublishedTensor, ...]:
    found, start = [], 0
    for name in names:
        rows = published[name][0]
        rest = tuple(slice(0, size) for size in shape[1:])
        found.append(PublishedTensor(name, (slice(start, start + rows), *rest)))
        start += rows
    return tuple(found)


def covers(
    parts: Iterable[PublishedTensor], shape: Shape, shape_of: Callable[[str], Shape]
) -> bool:
    """Return whether published tensors fill a parameter, and each tensor has its place's shape."""
    filled = 0
    for part in parts:
        sizes = tuple(p.stop - p.start for p in part.place if isinstance(p, slice))
        if sizes != shape_of(part.name):
            return False
        ends = (place.stop if isinstance(place, slice) else place + 1 for place in part.place)
        if any(end > size for end, size in zip(ends, shape, strict=True)):
            return False
        filled += torch.Size(sizes).numel()
    return filled == torch.Size(shape).numel()
