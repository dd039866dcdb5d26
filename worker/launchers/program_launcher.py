"""Launches a program on a node: with the torchrun of its environment, or as one process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.failures import Failure, FailureReason, Remedy
from trainyard.spec.sections.program import ARCHIVE
from trainyard.spec.storage_uri import split_place
from worker.launchers.base import Launcher, Observation, Share, put_back
from worker.launchers.built_environment import (
    MissingEnvironmentError,
    UsedEnvironment,
    environment_of,
    root_at,
)
from worker.launchers.container import Container, command_inside, container_of
from worker.launchers.modules import load_modules, with_modules
from worker.launchers.pack_cache import PutBackError, fetch_pack
from worker.launchers.podman import remove_image
from worker.launchers.rank_environment import OF_OTHER_PYTHONS
from worker.launchers.torchrun import RankWatch, TorchrunLauncher, taken_port, torchrun_command
from worker.launchers.unpack import unpack
from worker.node.process_tree import WRAPPER

logger = logging.getLogger(__name__)

RUN = "TRAINYARD_RUN"
"""Variable with the program's run directory."""
EVENT_FOLDER = "TENSORBOARD_LOGGING_DIR"
"""Variable that Hugging Face's Trainer reads: the folder whose event files become metrics."""

REMEDY = Remedy(
    text="Mend what the message names, then resume; code that was packed needs a new job."
)
NO_TORCH = "No module named 'torch'"
"""Message of Python when torchrun starts in an environment without torch."""
TORCH_REMEDY = Remedy(
    text="Install torch in the environment, name another one in program.environment, or submit a "
    'job with program.launcher="command", which needs no torchrun.',
    field="program.environment",
)


def launcher_for(share: Share, *, why_cold: str = "") -> Launcher:
    """Return the launcher of a share: for the built-in trainer, or for a program.

    Args:
        share: the node's share of the attempt.
        why_cold: reason why the trainer's ranks are not forked, for their provenance.
    """
    return ProgramLauncher(share) if share.runs_program else TorchrunLauncher(share, why=why_cold)


@dataclass(frozen=True)
class Interpreter:
    """The Python interpreter of a program, and the folder of programs installed with it."""

    python: str
    programs: Path
    variables: Mapping[str, str]
    """Variables that lead the installed programs to the interpreter."""

    @classmethod
    def own(cls) -> Interpreter:
        """Return the worker's own interpreter."""
        return cls(sys.executable, Path(sys.executable).parent, {})

    @classmethod
    def at(cls, prefix: Path, *, named: str) -> Interpreter:
        """Return the interpreter of a venv or a conda environment.

        Args:
            prefix: folder of the environment.
            named: the spec field that names the environment, and its value.

        Raises:
            ValueError: there is no interpreter in the folder.
        """
        python = prefix / "bin" / "python"
        if not os.access(python, os.X_OK):
            raise ValueError(f"{named}: {python} is no interpreter")
        kind = "CONDA_PREFIX" if (prefix / "conda-meta").is_dir() else "VIRTUAL_ENV"
        return cls(str(python), python.parent, {kind: str(prefix)})


class ProgramLauncher(TorchrunLauncher):
    """Starts a program behind the rank wrapper, with the program's folder and environment."""

    checks_alongside = False
    node_at_fault = False

    def __init__(self, share: Share) -> None:
        """Describe the launch; nothing starts."""
        super().__init__(share)
        program = share.spec.program
        assert program is not None, "the share runs a program"
        self._program = program
        self._words: list[str] = []
        self._folder = "-"
        self._environment: dict[str, str] = {}
        self._python = sys.executable
        self._built: UsedEnvironment | None = None
        self._container: Container | None = None
        self._refused: Failure | None = None
        if program.launcher == "command":  # one process, the node's first rank
            self._watch = RankWatch(share.run, share.ranks[:1])

    def prepare(self) -> list[str] | Failure:
        """Find interpreter, folder, command; return an image's load command, [], or a failure."""
        if (taken := taken_port(self._share)) is not None:
            return taken
        try:
            self._find()
            return [] if self._container is None else self._container.prepare()
        except PutBackError as error:
            return put_back(self._share.launch.node, str(error), remedy=error.remedy)
        except MissingEnvironmentError as missing:
            back = put_back(self._share.launch.node, str(missing), remedy=missing.remedy)
            return replace(back, environment=missing.digest)
        except (OSError, ValueError) as error:
            return self._unfit(error)

    def start(self, *, check: Sequence[str] = ()) -> None:
        """Start torchrun or the node's single process, but nothing if its image cannot be used."""
        assert not check, "an image is loaded before its ranks start"
        share, environment = self._share, self._environment
        if (container := self._container) is not None:
            try:
                image = container.loaded()
            except ValueError as error:
                self._refused = self._unfit(error)
                return
            self._words = container.words(
                image, self._words, folder=self._folder, variables=environment
            )
        if self._program.launcher == "torchrun":
            command = torchrun_command(share, self._words, python=self._python, folder=self._folder)
        else:
            first = str(share.ranks[0])
            run = str(share.run.root)
            command = [*WRAPPER, "rank", run, first, self._folder, "--", *self._words]
            environment = environment | self._meeting_point()
        self._pid = share.processes.spawn(
            command,
            environment=environment,
            output=share.run.launcher_log,
            ignored=[signal.SIGTERM],  # as for the trainer's torchrun
        )

    def observe(self) -> Observation:
        """Return the ranks' state; periodically update the last use of the environment."""
        if self._built is not None:
            self._built.note()
        if self._refused is not None:
            return replace(super().observe(), ended=True, failure=self._refused)
        return super().observe()

    def stop(self) -> None:
        """End every process, then remove the image that was loaded for them."""
        super().stop()
        if (self._program.environment.container or "").endswith(ARCHIVE):
            try:
                remove_image(self._share.run.root, self._share.launch.user)
            except OSError:  # the attempt must still be reported
                logger.exception("the image of %s is not removed", self._share.run.root)

    def _unfit(self, error: Exception) -> Failure:
        return Failure(
            reason=FailureReason.LAUNCH_ERROR,
            message=f"{error} (on {self._share.launch.node})",
            node=self._share.launch.node,
            remedy=REMEDY,
        )

    def _failure(self, status: int, seen: Observation) -> Failure | None:
        failure = super()._failure(status, seen)
        if failure is None or NO_TORCH not in (failure.traceback or ""):
            return failure
        message = f"{failure.message}: {self._python} has no torch"
        return replace(failure, message=message, remedy=TORCH_REMEDY)

    def _find(self) -> None:
        share, program = self._share, self._program
        attempt: AttemptSpec = share.attempt
        code = self._code(attempt.roots)
        share.admit_user()  # the account reads the lock in the code, and loads modules and images
        interpreter = self._interpreter(attempt.roots)
        folder = self._working_folder(code)
        resume = attempt.resume
        checkpoint = None
        if resume is not None:
            section = attempt.overrides.checkpoint or share.spec.checkpoint
            root = root_at(attempt.roots, section.root, named=f"checkpoint.root={section.root!r}")
            checkpoint = str(root / resume.path)
        first, *others = program.words(
            attempt.layout, begun_before=attempt.begun_before, checkpoint=checkpoint
        )
        variables = self._variables()
        if interpreter.variables:
            for name in OF_OTHER_PYTHONS:
                variables.pop(name, None)
        path = f"{interpreter.programs}{os.pathsep}{variables.get('PATH', os.defpath)}"
        if program.environment.container is None:
            self._words = [*command_of(first, interpreter, folder, path=path), *others]
        else:
            self._container = container_of(
                program.environment.container,
                attempt.roots,
                run=share.run.root,
                user=share.launch.user,
                folders=[share.run.root, code],
                gpus=attempt.device == "cuda",
                path=path,
            )
            self._words = [*command_inside(first, folder), *others]
        self._folder, self._python = str(folder), interpreter.python
        own = {"PATH": path, RUN: str(share.run.root)}
        if EVENT_FOLDER not in share.spec.env:
            own[EVENT_FOLDER] = str(share.run.tensorboard)
        self._environment = variables | dict(interpreter.variables) | own

    def _variables(self) -> dict[str, str]:
        """Return the variables of the ranks, including those that the program's modules set.

        Raises:
            ValueError: the modules cannot be loaded.
        """
        share, modules = self._share, self._program.environment.modules
        if not modules:
            return dict(share.environment)
        loaded = load_modules(modules, user=share.launch.user, folder=share.run.root)
        kept = {**share.variables, **share.launch.environment}
        return with_modules(share.environment, loaded, kept=kept)

    def _code(self, roots: Mapping[str, str]) -> Path:
        """Return the folder of the program's files; unpack a pack into it.

        Raises:
            PutBackError: the pack is unavailable at present.
            ValueError: the folder does not exist, or the pack is unsuitable.
        """
        share, program = self._share, self._program
        if program.code is not None and program.code.folder is not None:
            return folder_at(roots, program.code.folder, field="program.code.folder")
        code: Path = share.run.code
        code.mkdir()  # no rank can enter the run directory yet
        if program.code is not None and program.code.pack is not None:
            unpack(fetch_pack(share, program.code.pack), code, user=share.launch.user)
        if share.launch.user is not None:
            share.launch.user.give(code, 0o1770)
        return code

    def _interpreter(self, roots: Mapping[str, str]) -> Interpreter:
        """Return the interpreter that the program names, or the worker's own.

        Raises:
            MissingEnvironmentError: the environment is not built yet.
            ValueError: the named place holds no interpreter.
        """
        section = self._program.environment
        if section.prefix is not None:
            field = "program.environment.prefix"
            folder = folder_at(roots, section.prefix, field=field)
            return Interpreter.at(folder, named=f"{field}={section.prefix!r}")
        if section.lock is None:
            return Interpreter.own()
        self._built = environment_of(self._share, section, code=self._program.code, roots=roots)
        return Interpreter.at(self._built.path, named=f"program.environment.lock={section.lock!r}")

    def _working_folder(self, code: Path) -> Path:
        """Return the folder in which the ranks start.

        Raises:
            ValueError: the folder is missing, or lies outside of the code.
        """
        program = self._program
        folder = (code / program.working_dir).resolve()
        if not folder.is_relative_to(code.resolve()):
            raise ValueError(f"program.working_dir={program.working_dir!r} leads out of {code}")
        if not folder.is_dir():
            raise ValueError(f"program.working_dir={program.working_dir!r}: {folder} is no folder")
        return folder

    def _meeting_point(self) -> dict[str, str]:
        """Return the variables for the rendezvous of the processes of all nodes."""
        share = self._share
        host, _, port = share.launch.rendezvous.rpartition(":")
        return {
            "MASTER_ADDR": host,
            "MASTER_PORT": port if share.nodes > 1 else str(_free_port()),
            "NODE_RANK": str(share.launch.node_rank),
            "NNODES": str(share.nodes),
            "NPROC_PER_NODE": str(len(share.ranks)),
        }


def folder_at(roots: Mapping[str, str], place: str, *, field: str) -> Path:
    """Return the folder of a place, which lies below a storage root of this node.

    Args:
        roots: storage roots of the node, by name.
        place: name of a root and a folder below it.
        field: spec field that names the place.

    Raises:
        ValueError: the root or the folder is missing on this node, or the folder lies outside of
            its root.
    """
    name, relative = split_place(place)
    named = f"{field}={place!r}"
    root = root_at(roots, name, named=named)
    folder = root / relative
    if not folder.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{named}: {folder} leads out of its root")
    if not folder.is_dir():
        raise ValueError(f"{named}: {folder} is no folder")
    return folder


def command_of(word: str, interpreter: Interpreter, folder: Path, *, path: str) -> Sequence[str]:
    """Return the words that replace the first word of a command.

    Args:
        word: a program of the environment, a file in the working folder, or a program on `path`.
        interpreter: interpreter for files that end with `.py`.
        folder: the working folder.
        path: search path for programs on the node.

    Raises:
        ValueError: the word names no such program or file.
    """
    if word in ("python", "python3"):
        return [interpreter.python]
    of_environment = interpreter.programs / word
    if "/" not in word and of_environment.is_file() and os.access(of_environment, os.X_OK):
        return [str(of_environment)]
    file = folder / word
    if file.is_file():
        if word.endswith(".py"):
            return [interpreter.python, str(file)]
        if not os.access(file, os.X_OK):
            raise ValueError(f"program.command[0]={word!r}: {file} is not executable")
        return [str(file)]
    found = shutil.which(word, path=path)
    if found is None:
        raise ValueError(
            f"program.command[0]={word!r} is no program in {interpreter.programs}, no file in "
            f"{folder}, and not on PATH"
        )
    return [found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
