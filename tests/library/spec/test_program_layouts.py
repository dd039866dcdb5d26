"""The layouts of a program: their rules, their arguments, and the layout of a launch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.client.spec_file import parse_assignment, typed_value
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_new_job
from trainyard.spec.sections.program import MAX_LAYOUTS

LISTED: list[dict[str, Any]] = [
    {"dp_shard": 2},
    {"dp_shard": 4},
    {"dp_shard": 2, "tp": 2, "arguments": {"tp": 2, "loss_parallel": True}},
]


def program(*, resources: Any = None, **fields: Any) -> JobSpec:
    given = {"command": ["train.py"], "resume": "any_world_size", "layouts": LISTED} | fields
    return parse_job_spec({"program": given, "resources": resources or {"world_size": 4}})


def test_the_first_layout_of_a_number_of_slots_is_its_default() -> None:
    spec = program()
    check_new_job(spec)
    assert spec.layout() == Layout(dp_shard=4)
    assert spec.layout(2) == Layout(dp_shard=2)
    assert spec.layout_name(spec.layout()) == "FSDP 4"
    reordered = program(layouts=LISTED[::-1])
    assert reordered.layout_name(reordered.layout()) == "FSDP 2 x TP 2"


def test_the_arguments_of_a_layout_replace_those_of_the_program() -> None:
    section = program(arguments={"tp": 1, "lr": 0.1, "loss_parallel": False}).program
    assert section is not None

    def words(layout: Layout) -> list[str]:
        return section.words(layout, begun_before=False, checkpoint=None)

    assert words(Layout(dp_shard=4)) == ["train.py", "--tp", "1", "--lr", "0.1"]
    assert words(Layout(dp_shard=2, tp=2)) == [
        *("train.py", "--tp", "2", "--lr", "0.1", "--loss_parallel"),
    ]


@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        (
            {"resume": "same_world_size"},
            "/program/resume",
            "resume='same_world_size', but the program has layouts; legal: any_world_size, or no "
            "layouts",
        ),
        (
            {"launcher": "command"},
            "/program/launcher",
            "launcher='command', but the program has layouts; legal: torchrun, or no layouts",
        ),
        (
            {"layouts": [*LISTED, {"dp_shard": 4, "arguments": {"x": 1}}]},
            "/program/layouts/3",
            "FSDP 4 is already at /program/layouts/1; legal: each layout once",
        ),
        (
            {"resources": {"world_size": 3}},
            "/resources/world_size",
            "world_size=3 has no layout in program.layouts; nearest legal: 2, 4",
        ),
        (
            {"resources": {"world_size": 3, "min_world_size": 2}},
            "/resources/world_size",
            "world_size=3 has no layout in program.layouts; nearest legal: 2, 4",
        ),
        (
            {"resources": {"world_size": 4, "min_world_size": 3}},
            "/resources/min_world_size",
            "min_world_size=3 has no layout in program.layouts; nearest legal: 2, 4",
        ),
        (
            {"resources": {"world_size": 4, "max_world_size": 6}},
            "/resources/max_world_size",
            "max_world_size=6 has no layout in program.layouts; nearest legal: 4",
        ),
        ({"layouts": [{"ep": 2}]}, "/program/layouts/0/ep", "unknown field"),
        (
            {"layouts": [{"dp_shard": -1}]},
            "/program/layouts/0/dp_shard",
            "Input should be greater than or equal to 1, got -1",
        ),
    ],
)
def test_an_illegal_list_is_refused_with_what_is_legal(
    fields: dict[str, Any], pointer: str, detail: str
) -> None:
    with pytest.raises(SpecError) as refused:
        check_new_job(program(**fields))
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [(pointer, detail)]


def test_a_list_has_at_most_512_layouts() -> None:
    sizes = [{"dp_shard": size} for size in range(1, MAX_LAYOUTS + 2)]
    check_new_job(program(layouts=sizes[:-1]))
    with pytest.raises(SpecError, match="at most 512 items"):
        program(layouts=sizes)


def test_an_elastic_job_has_layouts_at_both_ends_of_its_range() -> None:
    check_new_job(program(resources={"world_size": 4, "min_world_size": 2}))


def test_layouts_are_read_as_they_were_written_and_change_the_digest() -> None:
    spec = program()
    assert parse_job_spec(spec.model_dump_json()) == spec
    assert spec.digest != program(layouts=LISTED[::-1]).digest
    plain = program(layouts=[])
    assert plain.digest == parse_job_spec(plain.model_dump_json(exclude_defaults=True)).digest


def test_an_assignment_gives_the_whole_list() -> None:
    given = "[{dp_shard = 2, arguments = {tp = 1}}, {tp = 2}]"
    value = typed_value(parse_assignment(f"program.layouts={given}"))
    assert json.dumps(value) == '[{"dp_shard": 2, "arguments": {"tp": 1}}, {"tp": 2}]'
