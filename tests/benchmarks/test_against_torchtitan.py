"""What the comparison with torchtitan reads from its log."""

from __future__ import annotations

import pytest

from benchmarks.against_torchtitan import middle, rates_in

LOG = """
[titan] 2026-11-22 10:00:00,000 - root - INFO - Training starts at step 1
\x1b[31mstep:  1  \x1b[32mloss:  7.71  \x1b[35mmemory:  0.00GiB  \x1b[34mtps: 240\x1b[0m
\x1b[31mstep:  1  \x1b[32mloss:  7.71  \x1b[35mmemory:  0.00GiB  \x1b[34mtps: 240\x1b[0m
step:  5  loss:  7.02  grad_norm:  1.2  memory:  0.00GiB(0.00%)  tps: 1,080  tflops: 0.08  mfu: 1%
step: 10  loss:  6.02  grad_norm:  1.1  memory:  0.00GiB(0.00%)  tps: 1,100  tflops: 0.08  mfu: 1%
step: 15  loss:  5.02  grad_norm:  1.0  memory:  0.00GiB(0.00%)  tps: 1,204  tflops: 0.08  mfu: 1%
"""


def test_a_step_has_one_rate_whatever_its_colours_and_however_many_ranks_say_it() -> None:
    assert rates_in(LOG) == [240, 1080, 1100, 1204]


def test_the_first_two_rates_are_those_of_a_warm_up() -> None:
    assert middle(rates_in(LOG)) == 1152
    with pytest.raises(RuntimeError, match="2 lines with a rate; take more steps"):
        middle([240.0, 1080.0])
