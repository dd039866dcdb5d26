"""Counts of a step: what is counted as what, and our own step against formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.one_rank import in_processes
from benchmarks.step_counts.__main__ import (
    CASES,
    RANKS,
    SEQ_LEN,
    Case,
    above,
    count_torchtitan,
    document,
    with_totals,
)
from benchmarks.step_counts.counter import StepCounter
from benchmarks.step_counts.trainer_step import count
from tests.examples.test_programs import NO_TITAN, TITAN
from trainyard.planner.parameters import count_parameters
from trainyard.spec.job import parse_job_spec


def test_views_are_free_and_each_kernel_counts_once() -> None:
    x, out = torch.ones(4, 8), torch.empty(4, 3)
    with StepCounter() as counter:
        torch.mm(x.view(8, 4).t(), torch.ones(8, 3), out=out)
        wide = x.bfloat16().float()
        wide.add_(1).sum().item()
    assert counter.operations == {"ones": 1, "mm": 1, "_to_copy": 2, "add_": 1, "sum": 1}
    counts = counter.counts
    assert (counts["products"], counts["multiply-adds"], counts["host syncs"]) == (1, 4 * 8 * 3, 1)
    assert (counts["copies"], counts["casts"], counts["cast bytes"]) == (2, 2, 32 * (2 + 4))


def test_ours_is_above_where_it_has_more() -> None:
    theirs = with_totals({"all_gather": 2, "all_reduce": 1, "cast bytes": 4})
    ours = with_totals({"all_gather": 3, "all_reduce": 1, "host syncs": 1})
    assert above(ours, theirs) == {"collectives": [4, 3], "host syncs": [1, 0]}
    assert above(theirs, theirs) == {}


def test_a_step_on_fsdp_gathers_and_sums_each_weight_and_waits_for_nothing() -> None:
    [found] = in_processes(count, [(job := document(CASES["fsdp_8"], 1),)])
    counts, operations = found["counts"], found["operations"]
    parameters = count_parameters(parse_job_spec(job).architecture)
    assert counts["reduce_scatter bytes"] == 4 * parameters.total
    # The block is gathered twice; the embedding, the norm and the head once, in bfloat16.
    whole = parameters.total - parameters.head - parameters.final_norm - parameters.embedding
    assert counts["all_gather bytes"] == 2 * (parameters.total + whole)
    assert counts["all_reduce"] == 1  # of the norm
    assert counts.get("host syncs", 0) == 0
    assert (counts["host-device copies"], counts["host-device bytes"]) == (2, 2 * 8 * SEQ_LEN)
    # Seven matrices of the block and the head, forward and both gradients.
    assert counts["products"] == 3 * (7 + 1)
    assert operations["replace_by_gradient"] == 1
    assert parse_job_spec(job).layout().world_size == RANKS


@pytest.mark.slow
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_torchtitan_multiplies_as_much_as_ours(case: Case) -> None:
    assert TITAN is not None
    theirs = count_torchtitan(Path(TITAN), case, 1)["counts"]
    [found] = in_processes(count, [(document(case, 1),)])
    ours = found["counts"]
    assert theirs["multiply-adds"] == ours["multiply-adds"]
    assert theirs["attention"] == ours["attention"]
    assert theirs.get("host syncs", 0) == 0
    # Labels, their number, tokens and positions.
    assert (theirs["host-device copies"], theirs["host-device bytes"]) == (4, 3 * 8 * SEQ_LEN + 8)
