"""The words that run the command of a rank in a container of Apptainer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.spec.storage_uri import is_object_store, split_place
from worker.launchers.built_environment import root_at

ENGINE = "apptainer"
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Container:
    """An image and what of the node its processes see, each at its own path."""

    engine: str
    """Path of Apptainer."""
    image: str
    """Path of the image."""
    binds: tuple[str, ...]
    """Folders of the node."""
    gpus: bool
    """Whether libraries and devices of the GPUs are added."""

    @classmethod
    def of(
        cls, place: str, roots: Mapping[str, str], *, folders: Iterable[Path], gpus: bool, path: str
    ) -> Container:
        """Return the container of an image.

        Args:
            place: the image.
            roots: storage roots of this node, all of which are bound but for buckets.
            folders: further folders to bind.
            gpus: whether the slots are GPUs.
            path: where Apptainer is looked up.

        Raises:
            ValueError: the node lacks the image or Apptainer, or a path cannot be bound.
        """
        field = f"environment.container={place!r}"
        engine = shutil.which(ENGINE, path=path)
        if engine is None:
            raise ValueError(f"{field}: this node has no {ENGINE} on PATH")
        name, relative = split_place(place)
        root = root_at(roots, name, named=field)
        image = (root / relative).resolve()
        if not image.is_relative_to(root.resolve()):
            raise ValueError(f"{field}: {root / relative} leads out of its root")
        if not image.is_file():
            raise ValueError(f"{field}: {root / relative} is no file")
        seen = [Path(root) for root in roots.values() if not is_object_store(root)]
        named = [path for folder in (*seen, *folders) for path in (folder, folder.resolve())]
        binds = tuple(dict.fromkeys(str(path) for path in named if path.is_dir()))
        for bind in binds:
            if {":", ","} & {*bind}:
                raise ValueError(f"{field}: {bind} cannot be bound, as its name holds ':' or ','")
        return cls(engine, str(image), binds, gpus)

    def words(self, command: Sequence[str], *, folder: str) -> list[str]:
        """Return the words that run a command.

        Neither `--pid` nor `--ipc`: the supervisor ends the processes of the host, and ranks of one
        node share memory. `--contain` keeps home and temporary folders of the node out.

        Args:
            command: the command inside.
            folder: where it runs.
        """
        binds = [word for bind in (*self.binds, SHARED_MEMORY) for word in ("--bind", bind)]
        gpus = ["--nv"] if self.gpus else []
        return [
            *(self.engine, "exec", "--contain", "--no-home", *gpus, *binds),
            *("--pwd", folder, self.image, *command),
        ]


def command_inside(word: str, folder: Path) -> Iterator[str]:
    """Yield the words by which the first word of a command is started in an image.

    Args:
        word: a file in the working folder, or a program on the image's `PATH`.
        folder: the working folder.
    """
    file = folder / word
    if not file.is_file():
        yield word
        return
    if word.endswith(".py"):
        yield "python"
    yield str(file)
