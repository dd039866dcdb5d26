"""What a checkpoint holds beside what is to be filled from it: every name, shape and type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.checkpoint.state import OPTIMIZER, WEIGHTS
from trainer.errors import MismatchError
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import Manifest

SHOWN = 8
"""Tensors of each kind of difference that are named; of the others only the number is."""


@dataclass(frozen=True)
class TensorKind:
    """What two tensors must have in common for one to be read into the other."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class Comparison:
    """A checkpoint beside what is to be filled from it."""

    alike: int
    """Tensors of the same name, shape and type."""
    missing: tuple[tuple[str, TensorKind], ...]
    """Those that are to be filled, but that the checkpoint lacks."""
    unexpected: tuple[tuple[str, TensorKind | None], ...]
    """Those that the checkpoint holds, but that nothing is to be filled from."""
    changed: tuple[tuple[str, TensorKind | None, TensorKind], ...]
    """Those of another shape or type: name, as stored (None: no tensor), and as wanted."""

    @property
    def fits(self) -> bool:
        """Whether the checkpoint holds exactly what is to be filled."""
        return not (self.missing or self.unexpected or self.changed)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.alike} tensors alike, {len(self.missing)} missing, "
            f"{len(self.unexpected)} unexpected, {len(self.changed)} changed"
        )
        yield from _listed("missing in the checkpoint", [f"{n}: {k}" for n, k in self.missing])
        yield from _listed(
            "unexpected in the checkpoint", [f"{n}: {k or 'no tensor'}" for n, k in self.unexpected]
        )
        yield from _listed(
            "changed", [f"{n} is {t or 'no tensor'} there and {h} here" for n, t, h in self.changed]
        )


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorKind]:
    """Return what each tensor is; of one that is spread over ranks, the whole."""
    return {
        name: TensorKind(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def drop_aliases(metadata: Metadata, tied: Mapping[str, str]) -> None:
    """Take out, in place, tied weights that an older checkpoint holds a second time.

    With an optimizer's state of its own such a name was no tie when it was written: it stays, and
    the checkpoint does not fit.

    Args:
        metadata: DCP metadata of the checkpoint.
        tied: further names of tied weights, each with the one that is read (`tied_weights`).
    """
    entries = metadata.state_dict_metadata
    for name, first in tied.items():
        moment = f"{OPTIMIZER}{name.removeprefix(WEIGHTS)}.exp_avg"
        if first in entries and moment not in entries:
            entries.pop(name, None)


def compare(
    metadata: Metadata, wanted: Mapping[str, TensorKind], *, parts: tuple[str, ...] = ("",)
) -> Comparison:
    """Compare what a checkpoint holds with what all ranks together will read from it.

    Args:
        metadata: DCP metadata of the checkpoint.
        wanted: what is to be filled.
        parts: beginnings of the names that are read, such as `model.`; the rest does not matter.
    """
    stored = {
        name: _kind(entry)
        for name, entry in metadata.state_dict_metadata.items()
        if name.startswith(parts)
    }
    both = sorted(stored.keys() & wanted.keys())
    changed = tuple((n, stored[n], wanted[n]) for n in both if stored[n] != wanted[n])
    return Comparison(
        alike=len(both) - len(changed),
        missing=tuple((n, wanted[n]) for n in sorted(wanted.keys() - stored.keys())),
        unexpected=tuple((n, stored[n]) for n in sorted(stored.keys() - wanted.keys())),
        changed=changed,
    )


def refuse_unless_it_fits(comparison: Comparison, manifest: Manifest, path: StoragePath) -> None:
    """Refuse a checkpoint that differs, naming what does and what to do about it.

    Raises:
        MismatchError: it does not fit.
    """
    if not comparison.fits:
        text = f"{path} does not fit this job: {comparison}"
        raise MismatchError(text, path=str(path), remedy=_remedy(comparison, manifest))


def _kind(entry: object) -> TensorKind | None:
    """Return what DCP would read; None for an object, which it would unpickle."""
    if not isinstance(entry, TensorStorageMetadata):
        return None
    return TensorKind(str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size))


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"  {title}:"
        yield from (f"    {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"    and {len(lines) - SHOWN} more"


def _remedy(comparison: Comparison, manifest: Manifest) -> str:
    found = (comparison.missing, comparison.unexpected, comparison.changed)
    if all(different[0].startswith("optimizer.") for kind in found for different in kind):
        return "The weights fit: set optimizer as it was when the checkpoint was written."
    if not (comparison.missing or comparison.unexpected) and all(
        kind is not None and kind.shape == wanted.shape for _, kind, wanted in comparison.changed
    ):
        kept = manifest.param_dtype
        return f"Set training.weight_dtype={kept!r}, in which the checkpoint's weights are kept."
    if manifest.model is None:
        return "Give the job the model of the one that wrote it."
    model = manifest.model
    fields = {"family": model.family, "size": model.size, **model.model_dump(exclude_defaults=True)}
    words = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"Set model as it was when the checkpoint was written: {words}."
