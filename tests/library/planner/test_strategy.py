"""The decision flow: the first question that applies, and the presets that follow it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from trainyard.planner.plan import plan
from trainyard.planner.results import Plan
from trainyard.planner.strategy import (
    FLOW,
    LONG_SEQUENCE,
    StrategyRule,
    choose_strategy,
    strategy_of,
)
from trainyard.spec.job import parse_job_spec

PRESETS = Path(__file__).resolve().parents[3] / "examples" / "presets"
BILLION = 10**9


@pytest.mark.parametrize(
    ("parameters", "tokens", "preset"),
    [
        (10 * BILLION, 8192, "up_to_10b"),
        (10 * BILLION + 1, 8192, "from_10b_to_100b"),
        (100 * BILLION + 1, 8192, "over_100b"),
        (8 * BILLION, LONG_SEQUENCE, "up_to_10b"),
        (8 * BILLION, LONG_SEQUENCE + 1, "long_context"),
        (405 * BILLION, LONG_SEQUENCE + 1, "long_context"),
    ],
)
def test_the_first_question_that_applies_decides(parameters: int, tokens: int, preset: str) -> None:
    assert choose_strategy(parameters=parameters, seq_len=tokens).preset == preset


@pytest.mark.parametrize("decision", FLOW, ids=lambda each: each.strategy.preset)
def test_each_preset_is_what_the_flow_chooses_for_its_model(decision: StrategyRule) -> None:
    strategy = decision.strategy
    spec = parse_job_spec(tomllib.loads((PRESETS / f"{strategy.preset}.toml").read_text()))
    assert strategy_of(spec) == strategy
    sizes = spec.layout().sizes
    assert {axis for axis, size in sizes.items() if size > 1} == set(strategy.axes)
    planned = plan(spec)
    assert isinstance(planned, Plan)
    assert planned.strategy == strategy


def test_every_preset_belongs_to_a_decision() -> None:
    names = {path.stem for path in PRESETS.glob("*.toml") if not path.stem.endswith(".debug")}
    assert {each.strategy.preset for each in FLOW} == names
