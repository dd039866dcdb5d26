"""Command lines that run a rank in a container of Apptainer or Podman."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.spec.sections.program import ARCHIVE
from trainyard.spec.storage_uri import is_object_store, split_place
from worker.launchers.built_environment import root_at
from worker.launchers.podman import OF_PODMAN, PODMAN, PodmanContainer
from worker.launchers.rank_environment import OF_OTHER_PYTHONS
from worker.node.users import RankUser

APPTAINER = "apptainer"
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class ApptainerContainer:
    """An image, and the folders of the node that its processes see, each at its own path."""

    engine: str
    """Path of Apptainer."""
    image: str
    """Path of the image."""
    binds: tuple[str, ...]
    """Folders of the node."""
    gpus: bool
    """Whether GPU libraries and devices are added."""

    def prepare(self) -> list[str]:
        """Return no command: the image is used in place."""
        return []

    def loaded(self) -> str:
        """Return the image."""
        return self.image

    def words(
        self, image: str, command: Sequence[str], *, folder: str, variables: Mapping[str, str]
    ) -> list[str]:
        """Return the command line that runs a command; variables of the process pass through.

        Neither `--pid` nor `--ipc`: the supervisor ends processes of the host, and ranks of one
        node share memory. `--contain` keeps the node's home and temporary folders out.

        Args:
            image: the result of `loaded`.
            command: the command inside.
            folder: where it runs.
            variables: variables of the ranks, which all pass through.
        """
        del variables
        binds = [word for bind in (*self.binds, SHARED_MEMORY) for word in ("--bind", bind)]
        gpus = ["--nv"] if self.gpus else []
        # torchrun, which starts this command line, needs the variables of its own interpreter.
        apart = [f"--unset={name}" for name in OF_OTHER_PYTHONS]
        return [
            *("/usr/bin/env", *apart, self.engine, "exec", "--contain", "--no-home", *gpus, *binds),
            *("--pwd", folder, image, *command),
        ]


Container = ApptainerContainer | PodmanContainer


def container_of(
    place: str,
    roots: Mapping[str, str],
    *,
    run: Path,
    user: RankUser | None,
    folders: Iterable[Path],
    gpus: bool,
    path: str,
) -> Container:
    """Return the container of an image: Podman's for an archive, otherwise Apptainer's.

    Args:
        place: the image.
        roots: storage roots of this node; all except buckets are bound.
        run: the run directory.
        user: user of the ranks; the worker's own when absent.
        folders: further folders to bind.
        gpus: whether the slots are GPUs.
        path: search path of the engine.

    Raises:
        ValueError: the node lacks the image or its engine, or a path cannot be bound.
    """
    field = f"program.environment.container={place!r}"
    of_podman = place.endswith(ARCHIVE)
    for name in (PODMAN, *OF_PODMAN) if of_podman else (APPTAINER,):
        if shutil.which(name, path=path) is None:
            raise ValueError(f"{field}: this node has no {name} on PATH")
    engine = shutil.which(PODMAN if of_podman else APPTAINER, path=path)
    assert engine is not None
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
    if of_podman:
        return PodmanContainer(engine, str(image), binds, gpus, run, user)
    return ApptainerContainer(engine, str(image), binds, gpus)


def command_inside(word: str, folder: Path) -> Iterator[str]:
    """Yield the command line that starts the first word of a command in an image.

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
