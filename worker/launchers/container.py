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
    """An Apptainer image; its processes see the node's bound folders at the same paths."""

    engine: str
    """Path of the Apptainer program."""
    image: str
    """Path of the image file."""
    binds: tuple[str, ...]
    """Folders of the node to bind."""
    gpus: bool
    """Whether to add GPU libraries and devices."""

    def prepare(self) -> list[str]:
        """Return no command: the image needs no preparation."""
        return []

    def loaded(self) -> str:
        """Return the path of the image."""
        return self.image

    def words(
        self, image: str, command: Sequence[str], *, folder: str, variables: Mapping[str, str]
    ) -> list[str]:
        """Return the command line that runs `command` in the image.

        `--pid` is absent, because the supervisor ends processes by their host pids. `--ipc` is
        absent, because the ranks of a node share memory. `--contain` hides the node's home and
        temporary folders.

        Args:
            image: the result of `loaded`.
            command: the command to run in the container.
            folder: working folder of the command.
            variables: variables of the ranks; all are inherited, except `OF_OTHER_PYTHONS`.
        """
        del variables
        binds = [word for bind in (*self.binds, SHARED_MEMORY) for word in ("--bind", bind)]
        gpus = ["--nv"] if self.gpus else []
        # torchrun starts this command line and needs its own interpreter's variables.
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
    """Return the container for an image: Podman for an archive, otherwise Apptainer.

    Args:
        place: storage place of the image.
        roots: storage roots of this node, by name; all except buckets are bound.
        run: the run directory.
        user: user of the ranks; if None, the worker's own user.
        folders: additional folders to bind.
        gpus: whether the slots are GPUs.
        path: search path for the container engine.

    Raises:
        ValueError: the node lacks the image or the engine, or a path cannot be bound.
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
    """Yield the words that replace the first word of a command that runs in an image.

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
