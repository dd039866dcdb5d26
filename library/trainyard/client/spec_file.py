"""Reads spec files and `--set`, and finds the source of each field."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from trainyard.base.json_text import is_json_number, json_problem
from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem
from trainyard.client.errors import UsageError
from trainyard.client.packing import OF_SPEC_FILES
from trainyard.outside.yaml_text import read_yaml
from trainyard.spec.job import JobSpec


def _read_json(text: str) -> Any:
    problem = json_problem(text)
    if problem is not None:
        raise ValueError(f"{problem.pointer or '/'}: {problem.detail}")
    return json.loads(text)


READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".json": _read_json,
}


@dataclass(frozen=True)
class Assignment:
    """One `--set section.field=value`."""

    path: tuple[str, ...]
    """Names on the path to the field, the outermost first."""
    text: str
    """Value as typed; empty to restore the default."""

    @property
    def pointer(self) -> str:
        """JSON pointer of the field."""
        return "".join(f"/{name}" for name in self.path)

    def __str__(self) -> str:
        """Return the assignment as the user typed it."""
        return f"--set {'.'.join(self.path)}={self.text}"


def read_spec_file(path: Path) -> dict[str, Any]:
    """Return the document in a TOML, YAML or JSON file.

    Raises:
        UsageError: the file cannot be read or is no table of fields; the error names file and
        place.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a spec file ends with {', '.join(READERS)}")
    try:
        document = reader(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        kind = path.suffix.lstrip(".").upper()
        raise UsageError(f"{path} is not valid {kind}: {error}") from None
    if document is None:  # an empty YAML file
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path} is a {type(document).__name__}, but needs a table of fields")
    return document


def parse_assignment(text: str) -> Assignment:
    """Parse `section.field=value`.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise UsageError(f"--set {text}: write section.field=value, such as training.steps=200")
    return Assignment(path, value.strip())


def apply(document: Mapping[str, Any], assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Return the document after the assignments, in order; an empty value removes the field.

    Raises:
        UsageError: a name on the path to a field is the name of a value, not of a section.
    """
    result = json.loads(json.dumps(document, default=str))
    for assignment in assignments:
        section = result
        for name in assignment.path[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise UsageError(f"{assignment}: {name} holds a value, not a section")
        if assignment.text:
            section[assignment.path[-1]] = typed_value(assignment)
        else:
            section.pop(assignment.path[-1], None)
    return dict(result)


def typed_value(assignment: Assignment) -> Any:
    """Return the value of an assignment: as TOML if the field accepts that, else as text.

    For example, `name=7` is text, `training.steps=7` is a number, and `model.size=8B` needs no
    quotes. If a field accepts text and numbers, only a number in JSON's form is a number, so
    `date=2024_01_02` stays text. A value that the field accepts in neither form is returned as TOML
    parses it; the validation of the spec then reports the legal values.
    """
    candidates: list[Any] = [assignment.text]
    try:
        candidates.insert(0, tomllib.loads(f"value = {assignment.text}")["value"])
    except tomllib.TOMLDecodeError:
        return assignment.text
    has_plain_form = isinstance(candidates[0], str | bool | list | dict)
    if not has_plain_form and not is_json_number(assignment.text):
        candidates.reverse()
    field_type = _field_type(JobSpec, assignment.path)
    if field_type is None:
        return candidates[0]
    for candidate in candidates:
        try:
            field_type.validate_json(json.dumps(candidate, default=str), strict=True)
        except ValidationError:
            continue
        return candidate
    return candidates[0]


def _field_type(model: type[SpecModel], path: Sequence[str]) -> TypeAdapter[Any] | None:
    """Return the type of a field below `model`; None for an unknown field or a whole section."""
    field = model.model_fields.get(path[0])
    if field is None:
        return None
    kind = field.annotation
    if (section := section_of(field)) is not None:
        return _field_type(section, path[1:]) if len(path) > 1 else None
    if len(path) > 1:
        return TypeAdapter(get_args(kind)[1]) if get_origin(kind) is dict else None
    return None if kind is None else TypeAdapter(kind)


def section_of(field: FieldInfo) -> type[SpecModel] | None:
    """Return the model of a field that is a section, optional or not; None for any other field."""
    if get_origin(field.annotation) is tuple:  # a list of tables, such as `program.layouts`
        return None
    kinds = [field.annotation, *get_args(field.annotation)]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, SpecModel)]
    return models[0] if models else None


def origin(
    problem: Problem, *, file: Path | None, assignments: Sequence[Assignment] = ()
) -> str | None:
    """Return the source of a problem's field: the last `--set` that changed it, else the file."""
    here = problem.pointer
    for assignment in reversed(assignments):
        if _within(here, assignment.pointer) or (here and _within(assignment.pointer, here)):
            return str(assignment)
    if file is None:
        return None
    field = problem.pointer.strip("/").replace("/", ".")
    return f"{file}: {field}" if field else str(file)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}/")


def legal_instead(problem: Problem) -> str | None:
    """Return a message on the legal alternatives to an unknown field.

    The message names the most similar field by its dotted path, or otherwise all fields of the
    section. Return None for any other problem, or if the field is not in a section.
    """
    if problem.detail != "unknown field":
        return None
    *parents, name = problem.pointer.strip("/").split("/")
    model: type[SpecModel] = JobSpec
    for parent in parents:
        field = model.model_fields.get(parent)
        section = section_of(field) if field else None
        if section is None:
            return None
        model = section
    legal = list(model.model_fields)
    if parents == ["program", "code"]:
        legal += OF_SPEC_FILES
    close = difflib.get_close_matches(name, legal, n=1)
    if close:
        return f"did you mean {'.'.join([*parents, close[0]])}?"
    return f"legal: {', '.join(legal)}"
