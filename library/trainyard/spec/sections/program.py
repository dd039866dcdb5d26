"""Section `program`: a program of the user's own, which runs in place of the built-in trainer."""

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
from trainyard.spec.code_pack import PACK_DIGEST
from trainyard.spec.storage_uri import Place, RootName

UV_LOCK = "uv.lock"
ARCHIVE = ".tar"
"""End of the name of an image that Podman runs."""
ENVIRONMENTS = "environments"
"""Folder of a storage root beneath which environments are installed."""
CHECKPOINT = "{checkpoint}"
"""Stands for the folder of the parent checkpoint in `resume_arguments`."""
COMMAND_LINE: JsonDict = {"command_line": True}
"""In the JSON Schema: the words are written in one line, as a shell reads it."""
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]*\}")

Word = Annotated[Text, Field(max_length=4096)]
Scalar = bool | int | float | Word


def _no_table(value: object) -> object:
    # Before pydantic tries each type, and answers with an error for each.
    inner = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, dict | list | tuple) for each in inner):
        raise ValueError(f"{value!r} is nested; legal: a boolean, a number, a text, a list of them")
    return value


ArgumentValue = Annotated[
    Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, max_length=256)],
    BeforeValidator(_no_table),
]
ArgumentName = Annotated[str, Field(pattern=ARGUMENT, max_length=200)]


def _inside(folder: str) -> str:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{folder!r} must be a relative path inside the code, without '..'")
    return folder


def _pattern(text: str) -> str:
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in text:
        raise ValueError(
            f"{text!r} is no pattern of files; legal: a relative path with '*', '?', '[...]' and "
            "'**', without '..'"
        )
    return text


def _named(word: str) -> str:
    if not word.strip():
        raise ValueError("the first word names what is run, and is empty")
    return word


def _split_words(value: object) -> object:
    if isinstance(value, str):
        words = json.dumps(value.split())
        raise ValueError(f"{value!r} is one text; legal: a list of words, such as {words}")
    return value


def _known_placeholders(word: str) -> str:
    for found in _PLACEHOLDER.findall(word):
        if found != CHECKPOINT:
            raise ValueError(f"{found} stands for nothing; legal: {CHECKPOINT}")
    return word


class CodeSection(SpecModel):
    """Where the program's files come from."""

    folder: Place | None = None
    """A folder below a storage root, such as `data:projects/mine`, in which the ranks run. All of
    them read it where it is: what changes there changes for a later attempt."""
    pack: Annotated[str, Field(pattern=PACK_DIGEST)] | None = None
    """A pack of files on the server, by its digest, in place of `folder`. Each attempt unpacks a
    copy of its own. `trainyard submit` makes one of `local`, or of `git` and `commit`."""

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        """Refuse none or both, of which neither names the files."""
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
    """The interpreter and packages with which the program runs."""

    prefix: Place | None = None
    """A venv or a conda environment below a storage root, such as `data:envs/mine`. Its scripts
    hold its path, so every node needs it where it was made. Without `prefix`,
    `lock` and `container` the worker's own interpreter and packages are used."""
    lock: Annotated[Text, Field(max_length=1000), AfterValidator(_lock_name)] | None = None
    """A `uv.lock` next to its `pyproject.toml`, or a `.txt` of pip's requirements with hashes,
    inside the code. Its packages are installed once for each storage root, by an operation on a
    node with the label `network=true`; jobs wait for it."""
    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")] | None = None
    """Version of the interpreter for the packages of `lock`, such as `3.12`, which the nodes need
    to have; that of the worker when absent."""
    root: RootName | None = None
    """Storage root in whose folder `environments` the packages of `lock` are installed; that of the
    checkpoints when absent."""
    container: Annotated[Place, AfterValidator(_image_name)] | None = None
    """An image below a storage root in which the command of each rank runs: one of Apptainer, such
    as `data:images/mine.sif`, or an archive that Podman loads, such as `data:images/mine.tar`.
    `torchrun` is the worker's own, outside of it."""
    modules: Annotated[tuple[ModuleName, ...], Field(strict=False, max_length=32)] = ()
    """Environment modules of the nodes, such as `cuda/12.4`, in the order in which they are loaded
    (`module load`). Variables of `env` override theirs."""

    @model_validator(mode="after")
    def _is_one_environment(self) -> Self:
        """Refuse two environments, and fields that belong to `lock` without it."""
        given = [n for n in ("prefix", "lock", "container") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"names {' and '.join(given)}; legal: at most one of them")
        for name in ("python", "root"):
            if getattr(self, name) is not None and self.lock is None:
                raise ValueError(f"{name} does nothing without lock; legal: no {name}, or a lock")
        return self


class ProgramSection(SpecModel):
    """A program of the user's own in place of the built-in trainer."""

    command: Annotated[
        tuple[Annotated[Word, Field(min_length=1)], ...],
        Field(strict=False, min_length=1, max_length=256, json_schema_extra=COMMAND_LINE),
        BeforeValidator(_split_words),
        AfterValidator(lambda words: (_named(words[0]), *words[1:])),
    ]
    """Words of the command, which no shell reads. The first is looked up among the programs of the
    environment, then as a path in the working directory, then on the node's `PATH`; a file that
    ends with `.py` runs with the environment's Python."""
    launcher: Literal["torchrun", "command"] = "torchrun"
    """`torchrun` starts the command once for each slot, with `RANK`, `LOCAL_RANK`, `WORLD_SIZE`,
    `MASTER_ADDR` and `MASTER_PORT`; `command` once for each node, with `MASTER_ADDR`,
    `MASTER_PORT`, `NODE_RANK`, `NNODES` and `NPROC_PER_NODE`."""
    arguments: Annotated[dict[ArgumentName, ArgumentValue], Field(max_length=256)] = Field(
        default_factory=dict
    )
    """Values that follow the command as `--name value`, so that comparisons can read them: `true`
    as `--name`, `false` not at all, and a list as `--name` with all of its values."""
    resume_arguments: Annotated[
        tuple[Annotated[Word, AfterValidator(_known_placeholders)], ...],
        Field(strict=False, max_length=256, json_schema_extra=COMMAND_LINE),
    ] = ()
    """Words that follow the others once ranks of an earlier attempt have begun. `{checkpoint}` in
    them stands for the folder of the checkpoint from which the attempt resumes; without one they
    are left out."""
    working_dir: Annotated[Text, Field(max_length=1000), AfterValidator(_inside)] = "."
    """Folder inside the code in which the ranks start."""
    steps: PositiveSteps | None = None
    """Steps that the program takes in all, where that is known: its progress is shown by them."""
    resume: Literal["never", "same_world_size", "any_world_size"] = "never"
    """What the program can do with what it saved: begin again, go on with as many slots, or go on
    with any number of them. An elastic job needs `any_world_size`."""
    preemptible: bool = False
    """Whether a job of higher priority may take its slots, although what it did since its last save
    is lost."""
    artifacts: Annotated[
        tuple[Annotated[Text, Field(max_length=200), AfterValidator(_pattern)], ...],
        Field(strict=False, max_length=20),
    ] = ()
    """Patterns of files, such as `results/**/*.csv`, that are stored with the job when an attempt
    ends; relative to the working folder, and to `outputs` of the run directory."""
    stop_grace_seconds: Annotated[float, Field(ge=0, le=3600, json_schema_extra={"unit": "s"})] = (
        30.0
    )
    """Time between SIGTERM to each rank and the end of all of them, on a stop."""
    code: CodeSection | None = None
    """Where its files come from; it starts in an empty folder when absent."""
    environment: EnvironmentSection = EnvironmentSection()
    """The interpreter and packages with which it runs."""

    @model_validator(mode="after")
    def _has_its_lock(self) -> Self:
        """Refuse a lock without the code that holds it."""
        if self.environment.lock is not None and self.code is None:
            raise ValueError(
                f"environment.lock={self.environment.lock!r} is a file of the code, and there is "
                "none; legal: a lock with code.pack or code.folder"
            )
        return self

    @property
    def needs_checkpoint(self) -> bool:
        """Whether `resume_arguments` name the folder of a checkpoint."""
        return any(CHECKPOINT in word for word in self.resume_arguments)

    @property
    def places(self) -> Mapping[str, str | None]:
        """Each place below a root that it names, by the JSON pointer of the field."""
        return {
            "/program/code/folder": self.code.folder if self.code is not None else None,
            "/program/environment/prefix": self.environment.prefix,
            "/program/environment/container": self.environment.container,
            "/program/environment/root": self.environment.root
            and f"{self.environment.root}:{ENVIRONMENTS}",
        }

    def words(self, *, begun_before: bool, checkpoint: str | None) -> list[str]:
        """Return all words of the command of an attempt.

        Args:
            begun_before: whether ranks of an earlier attempt of the job have begun.
            checkpoint: absolute folder of its parent checkpoint.
        """
        words = [*self.command]
        for name, value in self.arguments.items():
            words += _argument(name, value)
        if checkpoint is not None or (begun_before and not self.needs_checkpoint):
            words += [word.replace(CHECKPOINT, checkpoint or "") for word in self.resume_arguments]
        return words


def _argument(name: str, value: ArgumentValue) -> Iterator[str]:
    if isinstance(value, tuple):
        yield f"--{name}"
        yield from map(_text, value)
    elif value is True:
        yield f"--{name}"
    elif value is not False:
        text = _text(value)
        # Parsers of command lines read a value that begins with '-' as the next option.
        yield from [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)
