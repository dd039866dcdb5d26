"""Published weights of a hub model, which are checked before any tensor is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.files.places import resolve
from trainer.hugging_face.folder import PublishedFolder
from trainer.models.hub.causal_model import load_config, load_model
from trainer.models.hub.folder import CONFIG, HubFolder
from trainer.models.hub.published_tensor import PublishedTensor
from trainer.models.hub.published_weights import PublishedNames, covers
from trainyard.spec.job import JobSpec

PREFIX = "net.causal."
"""Prefix of the trainer's names for tensors of a hub model."""


FREE_SETTINGS = frozenset(
    {
        *("architectures", "dtype", "transformers_version", "_name_or_path", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id"),
    }
)
"""Settings in a config that may differ between a model and its weights."""


class HubWeights(PublishedFolder):
    """Finds the published tensors of each parameter and saved buffer of a hub model."""

    def __init__(self, folder: Path, names: PublishedNames) -> None:
        super().__init__(folder)
        self._names = names
        self._shapes = self.shapes()
        self._tensors = names.find(self._shapes)
        for alias, first in names.ties.items():
            if alias in self._tensors:
                self._tensors.setdefault(first, self._tensors[alias])

    @classmethod
    def of(cls, spec: JobSpec, roots: Mapping[str, str]) -> HubWeights:
        """Open and check the weights at the spec's `model.initial_weights` on this node.

        Raises:
            DataError: the place is missing or outside of its root, or holds other tensors than
                those of the model.
            LaunchError: the library cannot build the model, or would convert a tensor in an
                unsupported way.
        """
        place = spec.model.initial_weights
        assert place is not None, "the spec names no weights"
        field = f"model.initial_weights={place!r}"
        _, path = resolve(place, field, roots)
        folder = HubFolder.of(spec.model, roots)
        model = load_model(folder)
        found = cls(path, PublishedNames(model.causal, field=field))
        found.check()
        if path != folder.path and (path / CONFIG).is_file():
            found.compare_settings(HubFolder(path, field, folder.remote_code), folder)
        return found

    def check(self) -> None:
        """Reject a folder that does not hold exactly the tensors of the model.

        Raises:
            DataError: tensors are missing, unexpected, or of another shape.
        """
        names = self._names
        used = {part.name for parts in self._tensors.values() for part in parts}
        wanted = {name: t for name, t in names.tensors.items() if name not in names.ties}
        self.refuse(
            {
                "missing": [name for name in wanted if name not in self._tensors],
                "unexpected": [
                    name for name in self._shapes if name not in used and not names.is_ignored(name)
                ],
                "of a dtype other than float32, bfloat16 and float16": self.of_other_dtypes(used),
                "of another shape": [
                    f"{name} {list(tensor.shape)}"
                    for name, tensor in wanted.items()
                    if name in self._tensors
                    and not covers(
                        self._tensors[name], tuple(tensor.shape), self._shapes.__getitem__
                    )
                ],
            }
        )

    def compare_settings(self, of_weights: HubFolder, of_model: HubFolder) -> None:
        """Reject weights whose `config.json` has other settings than the model's.

        Raises:
            DataError: a setting differs that is not in `FREE_SETTINGS`.
            LaunchError: transformers cannot read a config, or no job can train it.
        """
        of_weights.content()
        theirs, ours = load_config(of_weights).to_dict(), load_config(of_model).to_dict()
        names = sorted((ours.keys() | theirs.keys()) - FREE_SETTINGS)
        different = [
            f"{name} is {theirs.get(name)!r}, but {ours.get(name)!r} in {of_model.field}"
            for name in names
            if ours.get(name) != theirs.get(name)
        ]
        if different:
            raise self.other_model(different)

    def check_ties(self, _: JobSpec) -> None:
        """Reject a tied tensor that the folder holds twice with different values.

        Raises:
            DataError: two tied tensors differ; the message names them.
        """
        for alias, first in self._names.ties.items():
            of_alias, of_first = self._tensors.get(alias, ()), self._tensors.get(first, ())
            for one, other in zip(of_alias, of_first, strict=False):
                if one.name != other.name and self.differ(one.name, other.name):
                    raise self.other_model(
                        [f"{one.name} differs from {other.name}, and the model ties both"]
                    )

    def published(
        self, name: str, _shape: Sequence[int], *, is_buffer: bool
    ) -> tuple[PublishedTensor, ...]:
        """Return the published tensors of a parameter or buffer; `name` is the trainer's name."""
        theirs = name.removeprefix(PREFIX)
        return self._tensors.get(theirs, ()) if is_buffer else self._tensors[theirs]
