"""Generates the page with the decision flow from a model to its parallel axes."""

from __future__ import annotations

from trainyard.planner.strategy import FLOW

HEAD = """# Which axes for which model

The first question with the answer yes decides. `trainyard.planner.strategy.choose_strategy` is the
same flow as a function, from which this page is generated; a plan names its answer, and the
[presets](presets.md) follow it. It gives a start. Which of the legal layouts of your slots is the
fastest, and whether it fits, is [predicted](planner.md#step-time) with each plan.

| question | axes above 1 | what to set | why | preset |
|---|---|---|---|---|
"""


def strategy_markdown() -> str:
    """Return the page."""
    rows = []
    for decision in FLOW:
        chosen = decision.strategy
        axes = ", ".join(f"`{axis}`" for axis in chosen.axes)
        cells = decision.question, axes, chosen.advice, chosen.why, f"`{chosen.preset}.toml`"
        rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)
