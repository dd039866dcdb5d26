"""A folder of published weights, which is checked before any tensor is read. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from safetensors import SafetensorError, safe_open

from trainer.data.files.places import read_json, refuse_pointer, resolve
from trainer.errors import DataError
from trainer.hugging_face.config import differences
from trainer.hugging_face.weight_names import published_name, shapes_of
from trainer.models.hub.published_tensor import PublishedTensor, whole
from trainer.storage.io_errors import file_digest
from trainyard.protocol.manifest import ManifestFile
from trainyard.spec.job import JobSpec
from trainyard.training.architectures import Architecture

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = frozenset({"F32", "BF16", "F16"})
"""Dtypes of published weights that can be loaded, as safetensors names them."""
LISTED = 5
"""Maximum number of names that a message lists; the rest is counted."""
HEAD, EMBEDDINGS = (published_name(f"{name}.weight") for name in ("output", "tok_embeddings"))
ROWS = 4096
"""Number of rows of the embeddings per comparison."""


class PublishedFolder:
    """Published tensors in the hub's format.

    A model in several files has an index that maps tensors to files; a model in a single file has
    none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = read_json(folder / CONFIG)
        self.file_of = self._find_tensors()
        """File of each tensor, by the tensor's published name."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its published name.

        Raises:
            DataError: a file cannot be read.
        """
        found: dict[str, tuple[int, ...]] = {}
        for path in sorted(set(self.file_of.values())):
            held = _shapes_in(path)
            found |= {name: held[name] for name in held if self.file_of.get(name) == path}
        return found

    def of_other_dtypes(self, names: Iterable[str]) -> list[str]:
        """Return the tensors, of the named ones, whose dtype is none of `DTYPES`."""
        found = []
        for path in sorted({self.file_of[name] for name in names}):
            with safe_open(path, framework="numpy") as file:
                held = [name for name in names if self.file_of[name] == path]
                dtypes = {name: file.get_slice(name).get_dtype() for name in held}
            found += [f"{name} ({dtype})" for name, dtype in dtypes.items() if dtype not in DTYPES]
        return found

    def refuse(self, wrong: Mapping[str, list[str]]) -> None:
        """Reject the folder if `wrong`, which maps faults to names of tensors, contains any name.

        Raises:
            DataError: `wrong` contains a name; the message has each fault and the names of its
                tensors.
        """
        found = [
            f"{len(names)} tensors {what}: {_listed(names)}"
            for what, names in wrong.items()
            if names
        ]
        if found:
            raise self.other_model(found)

    def other_model(self, differences: Sequence[str]) -> DataError:
        """Return the error for a folder with another model than that of the spec."""
        return DataError(
            f"{self.folder} holds another model than the spec names: {'; '.join(differences)}",
            path=str(self.folder),
        )

    def differ(self, one: str, other: str) -> bool:
        """Return whether two tensors differ; read and compare them in blocks of rows."""
        with (
            safe_open(self.file_of[one], framework="pt") as of_one,
            safe_open(self.file_of[other], framework="pt") as of_other,
        ):
            first, second = of_one.get_slice(one), of_other.get_slice(other)
            if first.get_shape() != second.get_shape():
                return True
            return any(
                bool((first[row : row + ROWS] != second[row : row + ROWS]).any())
                for row in range(0, first.get_shape()[0], ROWS)
            )

    def described(self, share: slice = slice(None)) -> list[ManifestFile]:
        """Return size and checksum of the files that `share` selects from the sorted files.

        The sorted files include config and index. The selected files are read completely.

        Raises:
            DataError: a file cannot be read.
        """
        paths = {self.folder / CONFIG, self.folder / INDEX, *self.file_of.values()}
        existing = sorted(path for path in paths if path.exists())
        try:
            return [
                ManifestFile(path=path.name, size=path.stat().st_size, xxh3_128=file_digest(path))
                for path in existing[share]
            ]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    def _find_tensors(self) -> dict[str, Path]:
        """Return the file of each tensor, by name, from the index or from the single file."""
        index = self.folder / INDEX
        if not index.exists():
            single = self.folder / SINGLE
            return dict.fromkeys(_shapes_in(single), single)
        places = read_json(index).get("weight_map")
        # Only plain file names, so that no path leads out of the folder.
        if not isinstance(places, dict) or not all(
            isinstance(file, str) and PurePosixPath(file).name == file for file in places.values()
        ):
            raise DataError(f"{index} does not say in which file each tensor lies", path=str(index))
        for file in sorted(set(places.values())):
            refuse_pointer(self.folder / file)
        return {name: self.folder / file for name, file in places.items()}


class WeightsFolder(PublishedFolder):
    """Published weights of a model of a family."""

    @classmethod
    def of(cls, spec: JobSpec, roots: Mapping[str, str]) -> WeightsFolder:
        """Open and check the weights at the spec's `model.initial_weights` on this node.

        Raises:
            DataError: the place is missing or outside of its root, holds no weights, or holds
                weights of another model; the message names differences.
        """
        place = spec.model.initial_weights
        assert place is not None, "the spec names no weights"
        _, path = resolve(place, f"model.initial_weights={place!r}", roots)
        found = cls(path)
        found.check(spec.model.family, spec.architecture)
        return found

    def published(
        self, name: str, shape: Sequence[int], *, is_buffer: bool
    ) -> tuple[PublishedTensor, ...]:
        """Return the published tensors of a parameter; for a buffer, return none."""
        return () if is_buffer else whole(published_name(name), shape)

    def check(self, family: str, arch: Architecture) -> None:
        """Reject a folder that does not hold exactly the tensors of a model.

        If the embeddings are tied, the folder may contain the head as well (`check_tied_head`).
        It may always contain rotary angles.

        Raises:
            DataError: the config or the tensors differ from the model; the message names the
                differences.
        """
        config = dict(self._config)
        says_tied = config.get("tie_word_embeddings") and not arch.tied_embeddings
        if says_tied and self._has_own_head():  # last, because it reads both tensors
            config["tie_word_embeddings"] = False  # the weights decide, not the config
        if wrong := list(differences(config, family, arch)):
            raise self.other_model(wrong)
        self._refuse_wrong_tensors(arch)

    def check_ties(self, spec: JobSpec) -> None:
        """If the spec ties head and embeddings, reject a folder in which the two differ.

        Raises:
            DataError: as for `check_tied_head`.
        """
        self.check_tied_head(spec.architecture)

    def check_tied_head(self, arch: Architecture) -> None:
        """If the model ties head and embeddings, reject a folder in which the two differ.

        Raises:
            DataError: head and embeddings differ, so they were trained separately.
        """
        if arch.tied_embeddings and self._has_own_head():
            raise DataError(
                f"{self.folder}: {HEAD} differs from {EMBEDDINGS}, and the model ties both; "
                "legal: model.tied_embeddings=false, or weights without that head",
                path=str(self.folder),
            )

    def _has_own_head(self) -> bool:
        """Return whether the folder has a head that differs from the embeddings."""
        if not {HEAD, EMBEDDINGS} <= self.file_of.keys():
            return False
        return self.differ(HEAD, EMBEDDINGS)

    def _refuse_wrong_tensors(self, arch: Architecture) -> None:
        wanted = {published_name(name): shape for name, shape in shapes_of(arch).items()}
        found = self.shapes()
        ignored = {HEAD} if arch.tied_embeddings else set()
        # Older versions of transformers also stored rotary angles, which can be computed from the
        # config.
        ignored |= {name for name in found if name.endswith("rotary_emb.inv_freq")}
        wrong = {
            "missing": [name for name in wanted if name not in found],
            "unexpected": [name for name in found if name not in wanted.keys() | ignored],
            "of a dtype other than float32, bfloat16 and float16": self.of_other_dtypes(
                [name for name in wanted if name in found]
            ),
            "of another shape": [
                f"{name} {found[name]} instead of {shape}"
                for name, shape in wanted.items()
                if name in found and found[name] != shape
            ],
        }
        self.refuse(wrong)


def _shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    refuse_pointer(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is no safetensors file: {error}", path=str(path)) from error


def _listed(names: list[str]) -> str:
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")
