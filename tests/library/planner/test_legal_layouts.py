"""Legal layouts: properties of all of them, and the reasons if none is legal."""

import contextlib
import itertools
import time
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.library.planner.specs_for_tests import job, slots_of
from trainyard.base.problems import SpecError
from trainyard.planner.legal_layouts import MAX_LISTED, LegalLayouts
from trainyard.planner.micro_batches import legal_micro_batch_size
from trainyard.planner.plan import resume_options
from trainyard.planner.results import BatchPlan, LayoutOption, ResumeOption
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.known_devices import Slot


def layouts_of(spec: JobSpec, world_size: int, *, slots: Collection[Slot] = ()) -> ResumeOption:
    return LegalLayouts(spec, slots=slots).on(world_size)


Row = tuple[str, Callable[[JobSpec], bool], str]


def batch_of(option: LayoutOption) -> BatchPlan:
    """Return the batch of a layout of the built-in trainer."""
    assert option.batch is not None
    return option.batch


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
    assert found.layouts or world_size > global_batch_size
    for option in found.layouts:
        assert option.layout.world_size == world_size
        batch = batch_of(option)
        partition = BatchPartition(global_batch_size, batch.micro_batch_size, option.layout.dp)
        assert (batch.rounds, batch.idle_share) == (partition.rounds, partition.idle_share)
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


def test_the_jobs_own_axes_come_first_then_those_that_keep_them_then_fewer_replicas() -> None:
    names = [option.name for option in layouts_of(job(), 4).layouts]
    assert names[:5] == ["FSDP 4", "HSDP 2x2", "DDP 4", "FSDP 2 x TP 2", "FSDP 2 x CP 2"]
    spec = job(2, parallelism={"tp": 2})
    names = [option.name for option in layouts_of(spec, 8).layouts]
    assert names[:3] == ["FSDP 4 x TP 2", "HSDP 2x2 x TP 2", "DDP 4 x TP 2"]


def test_the_list_is_that_of_asking_the_rules_about_every_layout() -> None:
    spec = job(training={"global_batch_size": 12, "micro_batch_size": 3})
    for world_size in (1, 6, 8, 12, 30):
        legal = set()
        sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
        for axes in itertools.product(sizes, repeat=5):
            layout = Layout(**dict(zip(Layout.model_fields, axes, strict=True)))
            rounds = max(1, layout.pp)
            size = legal_micro_batch_size(12, layout.dp, at_most=3, rounds=rounds)
            if layout.world_size != world_size or size is None:
                continue
            moved = spec.on_layout(layout)
            training = moved.training.model_copy(update={"micro_batch_size": size})
            with contextlib.suppress(SpecError):
                check_job_spec(moved.model_copy(update={"training": training}))
                legal.add(layout)
        found = layouts_of(spec, world_size)
        assert len(found.layouts) + found.more == len(legal)
        assert {option.layout for option in found.layouts} <= legal


def test_layouts_that_need_and_refuse_the_compiler_at_once_are_not_listed() -> None:
    """`compile.enabled` is `auto`: only tp turns it on, only a zero-bubble pipeline off."""
    axes = {"pp_schedule": "ZBVZeroBubble", "tp": 2, "async_tp": True}
    spec = job(4, parallelism=axes, model={"n_layers": 8}, resources={"device": "cuda"})
    names = {option.name for option in layouts_of(spec, 4).layouts}
    assert {"FSDP 2 x TP 2", "FSDP 2 x PP 2"} <= names
    assert "TP 2 x PP 2" not in names


def test_many_slots_are_answered_at_once() -> None:
    training = {"global_batch_size": 1024, "micro_batch_size": 1, "seq_len": 8192}
    spec = job(8, model={"size": "70B"}, training=training)
    started = time.process_time()
    resume_options(spec, world_sizes=range(8, 513, 8))
    assert time.process_time() - started < 10


def test_a_long_list_is_cut_and_the_rest_counted() -> None:
    training = {"global_batch_size": 64, "micro_batch_size": 1}
    found = layouts_of(job(training=training), 16)
    assert len(found.layouts) == MAX_LISTED
    assert found.layouts[0].name == "FSDP 16"
    assert found.more > 0


@pytest.mark.parametrize(
    ("plans", "names"),
    [
        ([], {"FSDP 4", "DDP 4", "HSDP 2x2"}),
        (["tensor"], {"FSDP 4", "DDP 4", "HSDP 2x2", "TP 4", "FSDP 2 x TP 2", "DDP 2 x TP 2"}),
        (["pipeline"], {"FSDP 4", "DDP 4", "HSDP 2x2", "PP 4", "FSDP 2 x PP 2", "DDP 2 x PP 2"}),
    ],
)
def test_an_own_model_is_cut_by_the_plans_that_it_gives_only(
    plans: list[str], names: set[str]
) -> None:
    shape = {"n_layers": 4, "n_heads": 4, "n_kv_heads": 4}
    model = {"factory": "gpt:build", "plans": plans, **shape}
    spec = job(model=model, training={"global_batch_size": 16, "micro_batch_size": 2})
    assert {option.name for option in layouts_of(spec, 4).layouts} == names


def test_pipelines_get_a_micro_batch_size_that_fills_their_stages() -> None:
    spec = job(training={"global_batch_size": 16, "micro_batch_size": 16})
    by_name = {option.name: option for option in layouts_of(spec, 4).layouts}
    whole, halves = by_name["TP 2 x PP 2"], by_name["FSDP 2 x PP 2"]
    assert (batch_of(whole).micro_batch_size, batch_of(whole).rounds) == (15, 2)
    assert (batch_of(halves).micro_batch_size, batch_of(halves).rounds) == (4, 2)
    assert halves.pipeline is not None
    assert (halves.pipeline.layers, halves.pipeline.microbatches) == ((2, 2), 2)
    assert halves.pipeline.bubble_share == pytest.approx(1 / 3)
    few = layouts_of(job(4, training={"global_batch_size": 3}, parallelism={"pp": 4}), 4)
    assert few.layouts
    assert "PP 4" not in [option.name for option in few.layouts]


def test_the_layout_of_the_jobs_own_axes_comes_first() -> None:
    spec = job(2, parallelism={"dp_replicate": 2})
    assert layouts_of(spec, 4).layouts[0].name == "HSDP 2x2"
    # Two replicas do not divide three slots: no layout of the job's own fits.
    assert [option.name for option in layouts_of(spec, 3).layouts][:2] == ["FSDP 3", "DDP 3"]


def test_the_own_micro_batch_size_is_kept_where_it_leaves_few_slots_idle() -> None:
    spec = job(training={"global_batch_size": 16, "micro_batch_size": 4})
    sizes = {n: batch_of(layouts_of(spec, n).layouts[0]).micro_batch_size for n in (1, 3, 4, 5, 16)}
    # On 3 and 5 slots the larger sizes 4 and 3 leave 33 % and 47 % of them idle.
    assert sizes == {1: 4, 3: 3, 4: 4, 5: 2, 16: 1}


def test_too_many_slots_are_refused_with_the_numbers() -> None:
    found = layouts_of(job(training={"global_batch_size": 16}), 17)
    assert found.reason == (
        "17 data-parallel ranks are more than the global_batch_size=16 sequences of a step"
    )


def test_nodes_that_do_not_divide_the_slots_are_the_reason() -> None:
    found = layouts_of(job(4, resources={"nodes": 2}), 3)
    assert not found.layouts
    assert found.reason == "nodes=2 does not divide world_size=3; nearest legal: 1, 3"


def test_whether_it_fits_is_said_only_when_the_memory_is_known() -> None:
    memory = layouts_of(job(), 2).layouts[0].memory
    assert memory is not None
    needed = memory.total
    fits = {
        known: layouts_of(job(), 2, slots=slots_of(known)).layouts[0].fits
        for known in (None, needed, needed - 1)
    }
    assert fits == {None: None, needed: True, needed - 1: False}


def test_a_world_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size"):
        layouts_of(job(), 0)
