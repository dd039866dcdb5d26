"""Base classes of shared models, and number types with a unit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trainyard.base.docstrings import DescribedFields, field_docstrings
from trainyard.base.whole_numbers import LAST_STEP


class SpecModel(DescribedFields, BaseModel):
    """A frozen, strict model, which rejects unknown fields, wrong types, NaN and infinity.

    In a strict model `"8"` is not an integer, and `1` is not a boolean. The docstring under a field
    is the help text of the field in the JSON Schema, the web form and the command line.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,  # saves 0.1 s at each start, as a program only builds models that it uses
        validate_default=True,
        json_schema_serialization_defaults_required=True,
    )


class RecordModel(DescribedFields, BaseModel):
    """A frozen record that programs exchange (run directory, reports, API views).

    Unlike a spec, a record may contain NaN and infinity, so that a NaN loss stays visible. Both are
    written as strings, because pydantic would by default write them as null.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        defer_build=True,  # saves 0.1 s at each start, as a program only builds models that it uses
        json_schema_serialization_defaults_required=True,  # a response always has all fields
    )


def build_validators() -> None:
    """Build the validators of all imported models now, despite `defer_build`.

    A process calls this before it forks; otherwise each child would build the validators of the
    models that it uses.
    """
    kinds: list[type[BaseModel]] = [SpecModel, RecordModel]
    for kind in kinds:  # the loop body appends to `kinds`
        kind.model_rebuild()
        kinds += kind.__subclasses__()


def description_of(kind: type[BaseModel], name: str) -> str:
    """Return the help text of a field; empty without one."""
    return kind.model_fields[name].description or field_docstrings(kind).get(name, "")


def _no_control_characters(text: str) -> str:
    for place, character in enumerate(text):
        if character not in "\n\t" and not character.isprintable():
            raise ValueError(f"control character {character!r} at position {place}")
    return text


Text = Annotated[str, AfterValidator(_no_control_characters)]
"""Free text. Of the characters that are not printable in Python's sense, such as control characters
and no-break spaces, only line breaks and tabs are legal."""


Steps = Annotated[int, Field(ge=0, le=LAST_STEP, json_schema_extra={"unit": "steps"})]
PositiveSteps = Annotated[int, Field(ge=1, le=LAST_STEP, json_schema_extra={"unit": "steps"})]
Sequences = Annotated[int, Field(ge=1, le=10**7, json_schema_extra={"unit": "sequences"})]
Tokens = Annotated[int, Field(ge=1, le=10**15, json_schema_extra={"unit": "tokens"})]
Ranks = Annotated[int, Field(ge=1, le=65_536, json_schema_extra={"unit": "ranks"})]
Seconds = Annotated[float, Field(ge=0, le=10**8, json_schema_extra={"unit": "s"})]
Fraction = Annotated[float, Field(ge=0, le=1)]
Auto = Literal["auto"]
"""Value that depends on the device; `trainyard.spec.auto` resolves it once the slots are known."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
