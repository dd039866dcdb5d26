"""Section `program`: a program of the user's own that runs instead of the built-in trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.config import JsonDict

from trainyard.base.model_base import PositiveSteps, SpecModel, Text
from trainyard.base.names import ARGUMENT
from trainyard.base.problems import around, refusal
from trainyard.spec.code_pack import PACK_DIGEST
from trainyard.spec.layout import Layout
from trainyard.spec.storage_uri import Place, RootName

UV_LOCK = "uv.lock"
ARCHIVE = ".tar"
"""Suffix of a container image for Podman."""
ENVIRONMENTS = "environments"
"""Name of the folder in a storage root that contains installed environments."""
CHECKPOINT = "{checkpoint}"
"""Placeholder in `resume_arguments` for the folder of the parent checkpoint."""
MAX_LAYOUTS = 512
"""Maximum number of layouts of a program."""
COMMAND_LINE: JsonDict = {"command_line": True}
"""Marks a field in the JSON Schema; forms show such a field as one line in shell syntax."""
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]*\}")

Word = Annotated[Text, Field(max_length=4096)]
Scalar = bool | int | float | Word


def _no_table(value: object) -> object:
    # Runs before pydantic tries each type of the union, because pydantic reports an error per type.
    inner = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, dict | list | tuple) for each in inner):
        raise ValueError(f"{value!r} is nested; legal: a boolean, a number, a text, a list of them")
    return value


ArgumentValue = Annotated[
    Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, max_length=256)],
    BeforeValidator(_no_table),
]
ArgumentName = Annotated[str, Field(pattern=ARGUMENT, max_length=200)]
Arguments = Annotated[dict[ArgumentName, ArgumentValue], Field(max_length=256)]


def _inside(folder: str) -> str:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{folder!r} must be a relative path inside the code, without '..'")
    return folder


def _pattern(text: str) -> str:
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in text:
        raise ValueError(
            f"{text!r} is no file pattern; legal: a relative path with '*', '?', '[...]' and "
            "'**', without '..'"
        )
    return text


def _named(word: str) -> str:
    if not word.strip():
        raise ValueError("the first word, which names the program, is empty")
    return word


def _split_words(value: object) -> object:
    if isinstance(value, str):
        words = json.dumps(value.split())
        raise ValueError(f"{value!r} is one text; legal: a list of words, such as {words}")
    return value


def _known_placeholders(word: str) -> str:
    for found in _PLACEHOLDER.findall(word):
        if found != CHECKPOINT:
            raise ValueError(f"{found} is no known placeholder; legal: {CHECKPOINT}")
    return word


class CodeSection(SpecModel):
    """Location of the program's files."""

    folder: Place | None = None
    """Working folder of the ranks, below a storage root, such as `data:projects/mine`. The folder
    is not copied, so a later attempt runs the files as they are at that time."""
    pack: Annotated[str, Field(pattern=PACK_DIGEST)] | None = None
    """Digest of a pack of files on the server, instead of `folder`. Each attempt unpacks its own
    copy of the pack. `trainyard submit` makes a pack from `local`, or from `git` and `commit`."""

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        """Reject a section with both fields or with neither."""
        if (self.folder is None) == (self.pack is None):
            raise ValueError("names exactly one of folder and pack")
        return self


ModuleName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*$", max_length=200),
]


def _image_name(place: str) -> str:
    if not place.endswith((".sif", ARCHIVE)):
        raise ValueError(
            f"{place!r} is no image; legal: a place that ends in .sif (of Apptainer) or {ARCHIVE} "
            "(of Podman)"
        )
    return place


def _lock_name(path: str) -> str:
    _inside(path)
    if PurePosixPath(path).name != UV_LOCK and not path.endswith(".txt"):
        raise ValueError(
            f"{path!r} is no lock; legal: a {UV_LOCK}, or requirements that end in .txt"
        )
    return path


class EnvironmentSection(SpecModel):
    """Interpreter and packages of the program."""

    prefix: Place | None = None
    """A venv or conda environment below a storage root, such as `data:envs/mine`. The scripts of an
    environment contain its path, so every node must have it at the path at which it was created.
    Without `prefix`, `lock` and `container` the program runs with the worker's own interpreter and
    packages."""
    lock: Annotated[Text, Field(max_length=1000), AfterValidator(_lock_name)] | None = None
    """A lock file in the code: a `uv.lock` next to its `pyproject.toml`, or pip requirements with
    hashes (`.txt`). The packages are installed once per storage root, by an operation on a node
    with the label `network=true`. The job waits until they are installed."""
    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")] | None = None
    """Python version for the packages of `lock`, such as `3.12`; if absent, the worker's own. Every
    node needs an interpreter of this version."""
    root: RootName | None = None
    """Storage root for the packages of `lock`, which are installed in its folder `environments`. If
    absent, the storage root of the checkpoints."""
    container: Annotated[Place, AfterValidator(_image_name)] | None = None
    """Container image below a storage root: an Apptainer image, such as `data:images/mine.sif`, or
    an archive for Podman, such as `data:images/mine.tar`. The command of each rank runs in a
    container of this image. `torchrun` is the worker's own and runs outside the container."""
    modules: Annotated[tuple[ModuleName, ...], Field(strict=False, max_length=32)] = ()
    """Environment modules that the node loads before the launch, in this order (`module load`),
    such as `cuda/12.4`. Variables in `env` override the variables that a module sets."""

    @model_validator(mode="after")
    def _is_one_environment(self) -> Self:
        """Reject two environments in one section, and fields that need a `lock` if there is
        none."""
        given = [n for n in ("prefix", "lock", "container") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"names {' and '.join(given)}; legal: at most one of them")
        for name in ("python", "root"):
            if getattr(self, name) is not None and self.lock is None:
                raise ValueError(f"{name} does nothing without lock; legal: no {name}, or a lock")
        return self


class ProgramLayout(Layout):
    """A legal layout of a program: sizes of the parallel axes, and arguments of the command.

    The product of the axes is the number of slots.
    """

    arguments: Arguments = Field(default_factory=dict)
    """Arguments that put the program into this layout. Each one replaces the entry of
    `program.arguments` with the same name."""

    @property
    def axes(self) -> Layout:
        """The sizes of the axes, without the arguments."""
        return Layout(**self.sizes)


class ProgramSection(SpecModel):
    """A program of the user's own that runs instead of the built-in trainer."""

    command: Annotated[
        tuple[Annotated[Word, Field(min_length=1)], ...],
        Field(strict=False, min_length=1, max_length=256, json_schema_extra=COMMAND_LINE),
        BeforeValidator(_split_words),
        AfterValidator(lambda words: (_named(words[0]), *words[1:])),
    ]
    """Command of the program, word by word; no shell expands the words. The first word is searched
    among the programs of the environment, then as a path in the working directory, then on the
    node's `PATH`. `python`, `python3` and a `.py` file run with the environment's Python."""
    launcher: Literal["torchrun", "command"] = "torchrun"
    """Way to start the command. `torchrun` starts it once per slot, with `RANK`, `LOCAL_RANK`,
    `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. `command` starts it once per node, with
    `MASTER_ADDR`, `MASTER_PORT`, `NODE_RANK`, `NNODES` and `NPROC_PER_NODE`."""
    arguments: Arguments = Field(default_factory=dict)
    """Arguments to add to the command as `--name value`, or as `--name=value` if the value starts
    with `-`; comparisons of jobs show them. The value `true` becomes `--name`, `false` is omitted,
    and a list becomes `--name` and all values of the list."""
    resume_arguments: Annotated[
        tuple[Annotated[Word, AfterValidator(_known_placeholders)], ...],
        Field(strict=False, max_length=256, json_schema_extra=COMMAND_LINE),
    ] = ()
    """Words to append to the command if the attempt loads a checkpoint, or once ranks of an earlier
    attempt have started. `{checkpoint}` stands for the folder of the checkpoint that the attempt
    loads. If one of the words contains `{checkpoint}` but the attempt loads no checkpoint, none of
    the words is appended."""
    working_dir: Annotated[Text, Field(max_length=1000), AfterValidator(_inside)] = "."
    """Working directory of the ranks, inside the code."""
    steps: PositiveSteps | None = None
    """Total number of steps of the program, if known. The job's progress is shown relative to this
    number."""
    resume: Literal["never", "same_world_size", "any_world_size"] = "never"
    """Number of slots on which the program can resume from its saves: on no number (`never`), on
    the same number, or on any number. An elastic job needs `any_world_size`."""
    layouts: Annotated[tuple[ProgramLayout, ...], Field(strict=False, max_length=MAX_LAYOUTS)] = ()
    """Legal layouts of the program, in order of preference; one of them has
    `resources.world_size` slots. The first layout of a number of slots is its default. Other
    numbers of slots are illegal. Layouts need `resume = "any_world_size"` and the launcher
    `torchrun`."""
    preemptible: bool = False
    """Whether a job of higher priority may take the slots; work since the last save is then
    lost."""
    artifacts: Annotated[
        tuple[Annotated[Text, Field(max_length=200), AfterValidator(_pattern)], ...],
        Field(strict=False, max_length=20),
    ] = ()
    """Patterns of files to store with the job when an attempt ends, such as `results/**/*.csv`.
    Each pattern is relative to the working directory, and to `outputs` in the run directory."""
    stop_grace_seconds: Annotated[float, Field(ge=0, le=3600, json_schema_extra={"unit": "s"})] = (
        30.0
    )
    """Time from SIGTERM to SIGKILL when a job is stopped; only ranks that still run get SIGKILL. A
    program that calls `should_stop` gets no SIGTERM, and this limit does not apply."""
    code: CodeSection | None = None
    """Location of the program's files; if absent, the program starts in an empty folder."""
    environment: EnvironmentSection = EnvironmentSection()
    """Interpreter and packages of the program."""

    @model_validator(mode="after")
    def _has_its_lock(self) -> Self:
        """Reject a lock without code, because the lock is a file of the code."""
        if self.environment.lock is not None and self.code is None:
            raise ValueError(
                f"environment.lock={self.environment.lock!r} is a file of the code, but the "
                "program has no code; legal: a lock with code.pack or code.folder"
            )
        return self

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of slots of the listed layouts, ascending; empty without layouts."""
        return tuple(sorted({each.world_size for each in self.layouts}))

    def layouts_on(self, world_size: int) -> list[Layout]:
        """Return the listed layouts of a number of slots, in order of preference.

        Raises:
            SpecError: no layout has this number of slots.
        """
        found = [each.axes for each in self.layouts if each.world_size == world_size]
        if not found:
            raise refusal(
                "/resources/world_size",
                f"world_size={world_size} has no layout in program.layouts; nearest legal: "
                f"{around(world_size, self.world_sizes)}",
            )
        return found

    @property
    def needs_checkpoint(self) -> bool:
        """Whether `resume_arguments` contain the folder of a checkpoint."""
        return any(CHECKPOINT in word for word in self.resume_arguments)

    @property
    def places(self) -> Mapping[str, str | None]:
        """Files and folders that fields name in storage roots, by JSON pointer; None if absent."""
        return {
            "/program/code/folder": self.code.folder if self.code is not None else None,
            "/program/environment/prefix": self.environment.prefix,
            "/program/environment/container": self.environment.container,
            "/program/environment/root": self.environment.root
            and f"{self.environment.root}:{ENVIRONMENTS}",
        }

    def words(self, layout: Layout, *, begun_before: bool, checkpoint: str | None) -> list[str]:
        """Return the command of an attempt, word by word.

        Args:
            layout: layout of the attempt; arguments of a listed layout override `arguments`.
            begun_before: whether ranks of an earlier attempt of the job have started.
            checkpoint: absolute path of the parent checkpoint's folder; None without one.
        """
        words = [*self.command]
        for name, value in self._arguments_on(layout).items():
            words += _argument(name, value)
        if checkpoint is not None or (begun_before and not self.needs_checkpoint):
            words += [word.replace(CHECKPOINT, checkpoint or "") for word in self.resume_arguments]
        return words

    def _arguments_on(self, layout: Layout) -> dict[str, ArgumentValue]:
        listed = (each.arguments for each in self.layouts if each.sizes == layout.sizes)
        return self.arguments | next(listed, {})


def _argument(name: str, value: ArgumentValue) -> Iterator[str]:
    if isinstance(value, tuple):
        yield f"--{name}"
        yield from map(_text, value)
    elif value is True:
        yield f"--{name}"
    elif value is not False:
        text = _text(value)
        # Argument parsers would read a separate value that starts with '-' as the next option.
        yield from [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)
