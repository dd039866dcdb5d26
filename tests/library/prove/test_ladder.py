"""The ladder: every check of every number of slots is legal, and chains are as described."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainyard.base.problems import SpecError
from trainyard.client.sdk import Client
from trainyard.planner.plan import plan
from trainyard.prove.bench import Bench, BenchKeys
from trainyard.prove.html_report import STAGES
from trainyard.prove.ladder import SIZES, ladder
from trainyard.prove.rungs.compared_strategies import document
from trainyard.prove.rungs.layouts import layouts
from trainyard.prove.rungs.resumes import links, save_interval
from trainyard.prove.rungs.small_job import small_job
from trainyard.prove.strategies import USES, strategies
from trainyard.spec.job import parse_job_spec

SLOTS = [1, 2, 3, 4, 5, 6, 8, 16, 64]


def bench(slots: int, tmp_path: Path) -> Bench:
    return Bench(
        cast(Client, SimpleNamespace()),
        slots=slots,
        device="cpu",
        keys=BenchKeys(own="k", reference="r"),
        folder=tmp_path,
        deadline=0.0,
    )


@pytest.mark.parametrize("slots", SLOTS)
def test_every_layout_is_legal_and_uses_no_more_than_the_slots(slots: int, tmp_path: Path) -> None:
    for name, (ranks, axes) in layouts(slots).items():
        job = small_job(bench(slots, tmp_path), name, steps=20, ranks=ranks, axes=axes)
        planned = plan(parse_job_spec(job))
        assert planned.layout.world_size == ranks <= slots, name


@pytest.mark.parametrize("slots", SLOTS)
def test_every_number_of_ranks_of_a_chain_is_legal(slots: int, tmp_path: Path) -> None:
    for ranks in range(1, slots + 1):
        plan(parse_job_spec(small_job(bench(slots, tmp_path), "chain", steps=80, ranks=ranks)))


def test_four_slots_cover_every_axis_and_an_uneven_number_of_ranks() -> None:
    assert layouts(4).keys() == {
        "fsdp-4",
        "fsdp-3",
        "hsdp-2x2",
        "fsdp-2-tp-2",
        "fsdp-2-cp-2",
        "fsdp-2-pp-2",
    }
    assert "fsdp-2-tp-2-pp-2" in layouts(8)
    assert layouts(1) == {}
    assert layouts(3).keys() == {"fsdp-3", "fsdp-2", "tp-2", "cp-2", "pp-2"}


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_strategy_is_legal_or_names_its_devices(slots: int, device: Any) -> None:
    every = strategies(slots, device=device)
    assert {each.name for each in every} <= USES.keys()
    assert every[0].missing is None
    for each in every:
        if each.missing is None:
            plan(parse_job_spec(document(each, 10)))


def test_a_job_that_the_planner_refuses_is_found(tmp_path: Path) -> None:
    job = small_job(bench(4, tmp_path), "no", steps=20, ranks=16)
    with pytest.raises(SpecError, match="micro_batch_size"):
        plan(parse_job_spec(job))


@pytest.mark.parametrize("slots", [1, 2, 4, 7])
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_chain_changes_its_ranks_and_is_killed_between_saves(slots: int, seed: int) -> None:
    found = links(slots, count=6, steps=120, seed=seed)
    assert found == links(slots, count=6, steps=120, seed=seed)
    assert [link.end for link in found] == ["kill", "stop", "kill", "stop", "kill", "finish"]
    assert found[0].ranks == slots
    assert all(1 <= link.ranks <= slots for link in found)
    if slots > 1:
        assert all(a.ranks != b.ranks for a, b in itertools.pairwise(found))
    untils = [link.until for link in found]
    assert untils == sorted(set(untils))
    assert all(0 < until < 120 for until in untils)
    assert all(until % save_interval(count=6, steps=120) == 3 for until in untils)


@pytest.mark.parametrize("device", SIZES)
@pytest.mark.parametrize("time", ["10m", "1h", "8h"])
def test_names_are_unique_and_every_stage_has_its_place_in_the_report(
    device: Any, time: Any
) -> None:
    for slots in SLOTS:
        checks = ladder(slots, device, time)
        names = [check.name for check in checks]
        assert len(set(names)) == len(names)
        assert {check.stage for check in checks} <= STAGES.keys()
        required = {check.stage for check in checks if not check.optional}
        assert required == {"machine", "layouts", "resumes", "saves"}, "a refusal of these fails"
