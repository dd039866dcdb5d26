"""The plan of a program with layouts, its resume options, and its next layout."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan_job, resume_options
from trainyard.planner.program_plan import next_layout
from trainyard.planner.results import ProgramPlan
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import ParallelismSection

TENSOR = Layout(dp_shard=2, tp=2)


def program(**fields: Any) -> JobSpec:
    layouts = [
        {"dp_shard": 4},
        {"dp_shard": 2},
        {"dp_shard": 2, "tp": 2, "arguments": {"tp": 2}},
    ]
    given = {"command": ["train.py"], "resume": "any_world_size", "layouts": layouts} | fields
    return parse_job_spec({"program": given, "resources": {"world_size": 4}})


def planned(spec: JobSpec, layout: Layout | None = None) -> ProgramPlan:
    plan = plan_job(spec, layout=layout)
    assert isinstance(plan, ProgramPlan)
    return plan


def test_a_plan_lists_all_layouts_in_their_order() -> None:
    plan = planned(program())
    assert (plan.name, plan.layout, plan.world_size) == ("FSDP 4", Layout(dp_shard=4), 4)
    assert [(each.world_size, each.name) for each in plan.layouts] == [
        (4, "FSDP 4"),
        (2, "FSDP 2"),
        (4, "FSDP 2 x TP 2"),
    ]
    assert plan.layouts[2].layout == TENSOR
    assert planned(program(layouts=[])).layouts == ()


def test_a_plan_of_another_layout_has_its_arguments() -> None:
    plan = planned(program(), TENSOR)
    assert (plan.name, plan.command) == ("FSDP 2 x TP 2", ("train.py", "--tp", "2"))


def test_resume_options_are_the_layouts_of_each_number_of_slots() -> None:
    two, three, four = resume_options(program(), world_sizes=[2, 3, 4])
    assert [each.name for each in two.layouts] == ["FSDP 2"]
    assert [each.name for each in four.layouts] == ["FSDP 4", "FSDP 2 x TP 2"]
    assert (two.reason, four.reason) == (None, None)
    assert three.layouts == ()
    assert three.reason == "world_size=3 has no layout in program.layouts; nearest legal: 2, 4"


@pytest.mark.parametrize(
    ("world_size", "section", "expected"),
    [
        (None, None, TENSOR),
        (4, None, TENSOR),
        (2, None, Layout(dp_shard=2)),
        (None, {}, Layout(dp_shard=4)),
        (None, {"dp_shard": 2}, Layout(dp_shard=2)),
        (2, {}, Layout(dp_shard=2)),
        (None, {"tp": 2}, TENSOR),
    ],
)
def test_the_next_layout_is_the_present_the_first_or_the_chosen_one(
    world_size: int | None, section: dict[str, int] | None, expected: Layout
) -> None:
    given = None if section is None else ParallelismSection.model_validate(section)
    assert next_layout(program(), TENSOR, world_size=world_size, section=given) == expected


@pytest.mark.parametrize(
    ("world_size", "section", "pointer", "detail"),
    [
        (
            3,
            None,
            "/resources/world_size",
            "world_size=3 has no layout in program.layouts; nearest legal: 2, 4",
        ),
        (
            None,
            {"tp": 4},
            "/parallelism",
            "TP 4 is not in program.layouts; legal on 4 slots: FSDP 4, FSDP 2 x TP 2",
        ),
        (
            None,
            {"async_tp": True},
            "/parallelism/async_tp",
            "async_tp=true, but a program has only the axes; legal: no async_tp",
        ),
        (
            2,
            {"dp_shard": 4},
            "/parallelism/dp_shard",
            "dp_shard=4 makes dp_replicate x dp_shard x cp x tp x pp = 4, but world_size=2; "
            "legal: 2, -1, or world_size=4",
        ),
    ],
)
def test_a_layout_that_is_not_listed_is_refused(
    world_size: int | None, section: dict[str, Any] | None, pointer: str, detail: str
) -> None:
    given = None if section is None else ParallelismSection.model_validate(section)
    with pytest.raises(SpecError) as refused:
        next_layout(program(), TENSOR, world_size=world_size, section=given)
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [(pointer, detail)]
