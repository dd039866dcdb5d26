"""The count of mutants: what is killed, module by module, and the bound that fails."""

from __future__ import annotations

from tools.mutation import LEAST_KILLED, killed_share, report

RESULTS = [
    ("specs.batch.x_deal__mutmut_1", "killed"),
    ("specs.batch.x_deal__mutmut_2", "survived"),
    ("worker.spool.x_next__mutmut_1", "timeout"),
    ("worker.spool.x_next__mutmut_2", "no tests"),
    ("worker.spool.x_next__mutmut_3", "killed"),
]


def test_each_module_and_all_together_are_counted() -> None:
    assert list(report(RESULTS)) == [
        {"module": "specs.batch", "mutants": 2, "killed": 1, "share": 0.5},
        {"module": "worker.spool", "mutants": 3, "killed": 2, "share": 0.667},
        {"module": "all", "mutants": 5, "killed": 3, "share": 0.6},
    ]
    assert killed_share(RESULTS) == 0.6


def test_a_run_that_tried_nothing_is_no_success() -> None:
    assert killed_share([]) < LEAST_KILLED
