"""The base of every shared model, and the number types that carry a unit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class SpecModel(BaseModel):
    """A frozen, strict model: unknown fields, wrong types, NaN and infinity are refused.

    Strict means that `"8"` is no integer and `1` is no boolean. The docstring under a field is its
    help text in the JSON Schema, the web form and the command line.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        json_schema_serialization_defaults_required=True,
    )


class RecordModel(BaseModel):
    """A frozen record that programs write for programs (run directory, reports, API views).

    Unlike a spec it may hold NaN and infinity, written as strings: a loss that became NaN is the
    point that people look for, and pydantic's default would turn it into null.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,  # an answer always has every field
    )


def _no_control_characters(text: str) -> str:
    for place, character in enumerate(text):
        if character not in "\n\t" and not character.isprintable():
            raise ValueError(f"control character {character!r} at position {place}")
    return text


Text = Annotated[str, AfterValidator(_no_control_characters)]
"""Free text: line breaks and tabs are its only control characters."""


def cut_to(limit: int, *, keep_end: bool = False) -> BeforeValidator:
    """Return the validator of a text that a program wrote, of whatever content and length.

    An error quotes data, paths and output of other programs. Its record must be kept all the same,
    so the text is made storable instead of refused: PostgreSQL stores no NUL, UTF-8 has no half of
    a surrogate pair, and a report has a largest size.

    Args:
        limit: most characters; `...` stands for what is left out.
        keep_end: whether the end is kept instead of the beginning.
    """

    def storable(text: object) -> object:
        if not isinstance(text, str):
            return text
        clean = text.encode("utf-8", errors="backslashreplace").decode().replace("\0", "\ufffd")
        if len(clean) <= limit:
            return clean
        return f"...{clean[3 - limit :]}" if keep_end else f"{clean[: limit - 3]}..."

    return BeforeValidator(storable)


Message = Annotated[str, Field(max_length=4000), cut_to(4000)]
"""One or two sentences of a program: an error, an outcome, an answer."""
WrittenPath = Annotated[str, Field(max_length=4096), cut_to(4096)]
"""A path as a program names it, whatever bytes it holds."""
Number = Annotated[int, Field(gt=-(2**62), lt=2**62)]
"""A whole number of a record; both databases and JSON hold it."""

Steps = Annotated[int, Field(ge=0, le=10**9, json_schema_extra={"unit": "steps"})]
PositiveSteps = Annotated[int, Field(ge=1, le=10**9, json_schema_extra={"unit": "steps"})]
Sequences = Annotated[int, Field(ge=1, le=10**7, json_schema_extra={"unit": "sequences"})]
Tokens = Annotated[int, Field(ge=1, le=10**15, json_schema_extra={"unit": "tokens"})]
Ranks = Annotated[int, Field(ge=1, le=65_536, json_schema_extra={"unit": "ranks"})]
Seconds = Annotated[float, Field(ge=0, le=10**8, json_schema_extra={"unit": "s"})]
Fraction = Annotated[float, Field(ge=0, le=1)]
Auto = Literal["auto"]
"""Left to the device: `trainyard.spec.auto` resolves it once an attempt has its slots."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
