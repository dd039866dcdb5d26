"""Generates the spec file of `trainyard init`: every field with its help, from the models."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterator

from trainyard.base.model_base import SpecModel, description_of
from trainyard.client.spec_file import section_of
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.checkpoint import KEPT, CheckpointSection
from trainyard.spec.sections.program import CodeSection, EnvironmentSection, ProgramSection

HEAD = """\
# A Trainyard job. Every field is optional; a commented one shows its default.
# `trainyard plan FILE` shows its plan, `trainyard submit FILE` submits it.
"""

SHOWN = {
    "model.size": "debug",
    "training.steps": 200,
    "training.seq_len": 128,
    "training.global_batch_size": 16,
    "training.micro_batch_size": 4,
    "optimizer.lr": 1e-3,
    "checkpoint.interval_steps": 50,
    "resources.world_size": 2,
    "program.command": ["train.py"],
    "program.code.folder": "data:my-code",
}
"""Fields that most people set; the template comments out all other fields except `name`."""
OF_PROGRAMS = ("description", "tags", "project", "checkpoint", "resources", "retry", "guard")
"""Fields and sections of the spec that also apply to a job with a program."""
OF_THE_TRAINER = tuple(name for name in CheckpointSection.model_fields if name not in KEPT)
"""Fields of the section `checkpoint` that do not apply to a job with a program."""

WIDTH = 98


def program_template(name: str) -> str:
    """Return a TOML spec file for a job with this name that runs a program."""
    lines = [HEAD, *_field(JobSpec, "name", value=name)]
    for key, field in JobSpec.model_fields.items():
        if key in OF_PROGRAMS and section_of(field) is None:
            lines += _field(JobSpec, key)
    lines += _section("program", ProgramSection, without=("arguments", "code", "environment"))
    arguments = _comment(description_of(ProgramSection, "arguments"))
    lines += ["", "[program.arguments]", *arguments, "# lr = 0.001"]
    lines += _section("program.code", CodeSection)
    lines += _section("program.environment", EnvironmentSection)
    for key, field in JobSpec.model_fields.items():
        kind = section_of(field)
        if key in OF_PROGRAMS and kind is not None:
            lines += _section(key, kind, without=() if key != "checkpoint" else OF_THE_TRAINER)
    env = _comment(description_of(JobSpec, "env"))
    lines += ["", "[env]", *env, '# NCCL_DEBUG = "WARN"']
    return "\n".join(lines) + "\n"


def spec_template(name: str) -> str:
    """Return a TOML spec file for a job with this name that runs the built-in trainer."""
    lines = [HEAD, *_field(JobSpec, "name", value=name)]
    sections: list[tuple[str, type[SpecModel]]] = []
    for key, field in JobSpec.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, SpecModel):
            sections.append((key, kind))
        elif key not in {"name", "env", "program"}:
            lines += _field(JobSpec, key)
    for key, kind in sections:
        lines += _section(key, kind)
    env = _comment(description_of(JobSpec, "env"))
    lines += ["", "[env]", *env, '# NCCL_DEBUG = "WARN"']
    return "\n".join(lines) + "\n"


def _section(name: str, kind: type[SpecModel], *, without: Collection[str] = ()) -> Iterator[str]:
    yield from ("", f"[{name}]", *_comment(kind.__doc__ or ""))
    for key in kind.model_fields:
        if key not in without:
            yield from _field(kind, key, value=SHOWN.get(f"{name}.{key}"))


def _field(kind: type[SpecModel], key: str, *, value: object = None) -> Iterator[str]:
    field = kind.model_fields[key]
    yield ""
    yield from _comment(description_of(kind, key))
    if value is not None:
        yield f"{key} = {_toml(value)}"
    elif (default := field.get_default(call_default_factory=True)) is None:
        yield f"# {key} ="
    else:
        yield f"# {key} = {_toml(default)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH - 2)]


def _toml(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)  # TOML and JSON write strings, integers and booleans alike
