"""The pages of the job spec: complete, and drawn from the models alone."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from tools.spec_docs import describe_type, spec_markdown, spec_trainer_markdown
from trainyard.base.model_base import SpecModel, description_of
from trainyard.spec.job import JobSpec


def rows() -> dict[str, list[str]]:
    """Cells of each table row, by the field in its first cell."""
    pages = spec_markdown() + spec_trainer_markdown()
    lines = [line for line in pages.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells if len(rest) == 4}


def descriptions(model: type[SpecModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the help of each field of a model, of its sections and lists of tables."""
    for name, field in model.model_fields.items():
        kinds: tuple[Any, ...] = (field.annotation, *get_args(field.annotation))
        section = next((k for k in kinds if isinstance(k, type) and issubclass(k, SpecModel)), None)
        is_list = get_origin(field.annotation) is tuple
        if section is None or is_list:
            yield path + name, description_of(model, name)
        if section is not None:
            yield from descriptions(section, f"{path}{name}{'[]' if is_list else ''}.")


def test_every_field_has_a_row_with_its_help() -> None:
    expected = dict(descriptions(JobSpec))
    written = rows()
    assert set(written) == set(expected)
    for path, description in expected.items():
        assert written[path][3] == " ".join(description.split())


def test_rows_give_type_default_and_unit() -> None:
    written = rows()
    assert written["training.steps"][:3] == ["integer, ≥ 1, ≤ 10^9", "`100`", "steps"]
    assert written["training.max_grad_norm"][:3] == ["number, ≥ 0", "`1.0`", ""]
    assert written["lr_schedule.decay_steps"][:3] == ["integer, ≥ 0, ≤ 10^9", "absent", "steps"]
    assert written["training.seed"][0] == "integer, ≥ 0, < 2^63"
    assert written["data.validation_fraction"][0] == "number, ≥ 0, < 1"
    assert written["resources.device"][:2] == ["`auto` / `cpu` / `cuda`", '`"auto"`']
    assert written["env"][:2] == ["table of: string, up to 4096 characters or table", "`{}`"]
    assert written["checkpoint.writers"][0] == (
        "`auto` / `all` / `one_replica` or integer, ≥ 1, ≤ 65,536"
    )


def test_a_reference_is_shown_by_its_values() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/Colour"}}
    definitions = {"Colour": {"enum": ["red", "green"], "type": "string"}}
    assert describe_type(schema, definitions) == "list of: `red` / `green`"
