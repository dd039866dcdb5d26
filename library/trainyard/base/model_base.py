"""The base of every shared model, and the number types that carry a unit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trainyard.base.docstrings import DescribedFields, field_docstrings
from trainyard.base.whole_numbers import LAST_STEP


class SpecModel(DescribedFields, BaseModel):
    """A frozen, strict model: unknown fields, wrong types, NaN and infinity are rejected.

    Strict means that `"8"` is no integer and `1` is no boolean. The docstring under a field is its
    help text in the JSON Schema, the web form and the command line.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,  # saves 0.1 s of each start: a program builds only the models it uses
        validate_default=True,
        json_schema_serialization_defaults_required=True,
    )


class RecordModel(DescribedFields, BaseModel):
    """A frozen record that programs write for programs (run directory, reports, API views).

    Unlike a spec it may hold NaN and infinity, which are written as strings: a NaN loss must stay
    visible, and pydantic's default would write null.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        defer_build=True,  # a program builds the few models that it uses: 0.1 s of each start
        json_schema_serialization_defaults_required=True,  # an answer always has every field
    )


def build_validators() -> None:
    """Build the validators of every imported model now, despite `defer_build`.

    A process calls this before it forks; otherwise each child builds the models it uses.
    """
    kinds: list[type[BaseModel]] = [SpecModel, RecordModel]
    for kind in kinds:  # the loop body appends to `kinds`
        kind.model_rebuild()
        kinds += kind.__subclasses__()


def description_of(kind: type[BaseModel], name: str) -> str:
    """Return the help text of a field; empty if it has none."""
    return kind.model_fields[name].description or field_docstrings(kind).get(name, "")


def _no_control_characters(text: str) -> str:
    for place, character in enumerate(text):
        if character not in "\n\t" and not character.isprintable():
            raise ValueError(f"control character {character!r} at position {place}")
    return text


Text = Annotated[str, AfterValidator(_no_control_characters)]
"""Free text: line breaks and tabs are its only control characters."""


Steps = Annotated[int, Field(ge=0, le=LAST_STEP, json_schema_extra={"unit": "steps"})]
PositiveSteps = Annotated[int, Field(ge=1, le=LAST_STEP, json_schema_extra={"unit": "steps"})]
Sequences = Annotated[int, Field(ge=1, le=10**7, json_schema_extra={"unit": "sequences"})]
Tokens = Annotated[int, Field(ge=1, le=10**15, json_schema_extra={"unit": "tokens"})]
Ranks = Annotated[int, Field(ge=1, le=65_536, json_schema_extra={"unit": "ranks"})]
Seconds = Annotated[float, Field(ge=0, le=10**8, json_schema_extra={"unit": "s"})]
Fraction = Annotated[float, Field(ge=0, le=1)]
Auto = Literal["auto"]
"""Depends on the device: `trainyard.spec.auto` resolves it once an attempt has its slots."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
