"""The collector runs on request, and only then."""

from __future__ import annotations

import gc
import weakref

import pytest

from trainer.process import STEPS_BETWEEN, collecting_between_steps, prefer_growing_segments


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_collected_after_the_same_steps_everywhere() -> None:
    assert gc.isenabled()
    with collecting_between_steps() as step_done:
        assert not gc.isenabled()
        dead = weakref.ref(_Cycle())
        for step in range(1, STEPS_BETWEEN):
            step_done(step)
        assert dead() is not None
        step_done(STEPS_BETWEEN)
        assert dead() is None
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, None),
    ],
)
def test_what_the_user_says_of_the_allocator_stands(
    given: dict[str, str], expected: str | None
) -> None:
    environment = dict(given)
    prefer_growing_segments(environment)
    assert environment.get("PYTORCH_ALLOC_CONF") == expected
