"""Docstrings under fields become descriptions of the JSON Schema, and are read only for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from trainyard.base.docstrings import field_docstrings
from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.run.record_base import JsonRecord

Item = TypeVar("Item")


class Base(RecordModel):
    """A base."""

    first: int
    """Of the base."""
    second: int = 2
    """Of the base."""


class Derived(Base):
    """A class that describes one field again."""

    second: int = 3
    """Of the class,
    on two lines."""
    third: Annotated[int, Field(description="Of the field.")] = 3
    """Not this."""
    inner: Base
    """Another one."""

    class Nested(SpecModel):
        """A class in a class."""

        first: int
        """Of the nested one."""


class Listed(RecordModel, Generic[Item]):
    """A generic class."""

    items: list[Item]
    """Its items."""


@dataclass(frozen=True)
class Record(JsonRecord):
    """A dataclass."""

    step: int
    """Its step."""
    plain: int = 0


def descriptions(schema: dict[str, Any]) -> dict[str, str | None]:
    return {name: of.get("description") for name, of in schema["properties"].items()}


def test_a_schema_has_the_docstrings_of_the_class_and_of_its_bases() -> None:
    assert descriptions(Derived.model_json_schema()) == {
        "first": "Of the base.",
        "second": "Of the class,\non two lines.",
        "third": "Of the field.",
        "inner": "Another one.",
    }
    inner = Derived.model_json_schema()["$defs"]["Base"]
    assert descriptions(inner) == {"first": "Of the base.", "second": "Of the base."}


def test_nested_generic_local_and_plain_classes_are_found() -> None:
    class Local(RecordModel):
        first: int
        """Of the local one."""

    assert descriptions(Derived.Nested.model_json_schema()) == {"first": "Of the nested one."}
    assert descriptions(Local.model_json_schema()) == {"first": "Of the local one."}
    assert descriptions(Listed[int].model_json_schema()) == {"items": "Its items."}
    record = TypeAdapter(Record).json_schema()
    assert descriptions(record) == {"step": "Its step.", "plain": None}


def test_a_class_without_a_source_has_no_docstrings() -> None:
    assert field_docstrings(BaseModel) == {}
    made = type("Made", (RecordModel,), {"__annotations__": {"step": int}, "__module__": "made"})
    assert field_docstrings(made) == {}
    assert descriptions(made.model_json_schema()) == {"step": None}  # type: ignore[attr-defined]


def test_no_source_is_read_where_a_program_starts() -> None:
    code = (
        "import trainyard.spec.job, trainyard.protocol.worker_messages\n"
        "from trainyard.base.docstrings import _of_module\n"
        "assert _of_module.cache_info().currsize == 0\n"
        "assert 'description' in str(trainyard.spec.job.JobSpec.model_json_schema())\n"
        "assert _of_module.cache_info().currsize > 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
