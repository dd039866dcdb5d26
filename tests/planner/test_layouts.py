"""Legal layouts: properties of all of them, and the reasons where there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layouts import layouts_of
from specs.batch import BatchDeal
from specs.rules import check_job_spec
from tests.planner.specs_for_tests import job


@given(
    world_size=st.integers(1, 24),
    global_batch_size=st.integers(1, 40),
    micro_batch_size=st.integers(1, 12),
)
def test_every_layout_is_one_that_the_job_may_run_on(
    world_size: int, global_batch_size: int, micro_batch_size: int
) -> None:
    training = {"global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    spec = job(training=training)
    found = layouts_of(spec, world_size)
    assert (found.reason is None) == bool(found.layouts)
    assert bool(found.layouts) == (world_size <= global_batch_size)
    for option in found.layouts:
        assert option.layout.world_size == world_size
        batch = option.batch
        deal = BatchDeal(global_batch_size, batch.micro_batch_size, option.layout.dp)
        assert (batch.rounds, batch.idle_share) == (deal.rounds, deal.idle_share)
        assert 0 <= batch.idle_share < 1
        assert batch.micro_batch_size <= micro_batch_size
        check_job_spec(
            job(
                world_size,
                training=training | {"micro_batch_size": batch.micro_batch_size},
                parallelism=option.layout.model_dump(),
            )
        )
    assert len({option.layout for option in found.layouts}) == len(found.layouts)


def test_layouts_are_those_with_an_engine_and_the_fewest_replicas_come_first() -> None:
    names = [option.name for option in layouts_of(job(), 4).layouts]
    assert names == ["FSDP 4", "HSDP 2x2", "HSDP 4x1"]


def test_an_axis_joins_when_its_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import planner.layouts
    import specs.rules

    without_tp = tuple(row for row in specs.rules.NOT_SUPPORTED_YET if row[0] != "/parallelism/tp")
    for module in (specs.rules, planner.layouts):
        monkeypatch.setattr(module, "NOT_SUPPORTED_YET", without_tp)
    names = [option.name for option in layouts_of(job(), 4).layouts]
    assert names == [
        "FSDP 4",
        "FSDP 1 x TP 4",
        "FSDP 2 x TP 2",
        "HSDP 2x1 x TP 2",
        "HSDP 2x2",
        "HSDP 4x1",
    ]


def test_the_layout_of_the_jobs_own_axes_comes_first() -> None:
    spec = job(2, parallelism={"dp_replicate": 2})
    assert layouts_of(spec, 4).layouts[0].name == "HSDP 2x2"
    # Two replicas do not divide three slots: nothing of the job's own fits.
    assert [option.name for option in layouts_of(spec, 3).layouts] == ["FSDP 3", "HSDP 3x1"]


def test_the_own_micro_batch_size_is_kept_where_it_is_legal() -> None:
    spec = job(training={"global_batch_size": 16, "micro_batch_size": 4})
    sizes = {n: layouts_of(spec, n).layouts[0].batch.micro_batch_size for n in (1, 3, 4, 5, 16)}
    assert sizes == {1: 4, 3: 4, 4: 4, 5: 3, 16: 1}


def test_too_many_slots_are_refused_with_the_numbers() -> None:
    found = layouts_of(job(training={"global_batch_size": 16}), 17)
    assert found.reason == (
        "17 data-parallel ranks are more than the global_batch_size=16 sequences of a step"
    )


def test_nodes_that_do_not_divide_the_slots_are_the_reason() -> None:
    found = layouts_of(job(4, resources={"nodes": 2}), 3)
    assert not found.layouts
    assert found.reason == "nodes=2 does not divide world_size=3"


def test_whether_it_fits_is_said_only_when_the_memory_is_known() -> None:
    needed = layouts_of(job(), 2).layouts[0].memory.total
    fits = {
        memory: layouts_of(job(), 2, device_memory_bytes=memory).layouts[0].fits
        for memory in (None, needed, needed - 1)
    }
    assert fits == {None: None, needed: True, needed - 1: False}


def test_a_world_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size"):
        layouts_of(job(), 0)
