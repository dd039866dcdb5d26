"""Predicted step times: work, the fit of coefficients to runs, and the ranking of layouts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.library.planner.specs_for_tests import job
from trainyard.planner.memory import estimate_memory
from trainyard.planner.plan import plan, resume_options
from trainyard.planner.speed.calibrate import (
    MARGIN_FROM,
    MeasuredRun,
    calibrate,
    predicted_bytes,
    predicted_seconds,
)
from trainyard.planner.speed.log_least_squares import fit_coefficients
from trainyard.planner.speed.prediction import Predictor
from trainyard.planner.speed.quantities import NodeKind, Quantity
from trainyard.planner.speed.rates import Calibration, seconds_by_quantity, sheet_rates
from trainyard.planner.speed.step_work import step_work
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec
from trainyard.training.flops import training_flops_per_token
from trainyard.training.known_devices import Slot

H100 = "NVIDIA H100 80GB HBM3"
GPUS = NodeKind("cuda", H100, slots=8, cores=96)
CPUS = NodeKind("cpu", "a processor", slots=4, cores=4)


def llama(ranks: int, *, size: str = "8B", device: str = "cuda", **sections: Any) -> JobSpec:
    training = {"seq_len": 4096, "global_batch_size": 64, "micro_batch_size": 1}
    spec = job(
        ranks,
        model={"size": size},
        training=training | {"param_dtype": "bfloat16"} | sections.pop("training", {}),
        resources={"device": device},
        **sections,
    )
    return resolved(spec, "cpu" if device == "cpu" else "cuda")


def sheet(node: NodeKind = GPUS) -> Calibration:
    found = sheet_rates(node.device, node.name)
    assert found is not None
    return found


def work_of(spec: JobSpec, node: NodeKind = GPUS) -> dict[Quantity, float]:
    layout = spec.layout()
    return step_work(spec, layout, partition=spec.batch_partition(layout), node=node).quantities


def run_of(spec: JobSpec, truth: Calibration, node: NodeKind = CPUS) -> MeasuredRun:
    layout = spec.layout()
    partition = spec.batch_partition(layout)
    work, memory = (
        step_work(spec, layout, partition=partition, node=node),
        estimate_memory(spec, layout, partition),
    )
    return MeasuredRun(
        work,
        memory,
        step_seconds=predicted_seconds(truth, work),
        peak_bytes=round(predicted_bytes(truth, memory)),
        available_bytes=2**50,
    )


def runs(truth: Calibration) -> list[MeasuredRun]:
    """Return runs on one hardware of several jobs and layouts, exact for its coefficients."""
    axes: tuple[dict[str, Any], ...] = (
        {},
        {"tp": 2},
        {"pp": 2},
        {"cp": 2},
        {"dp_replicate": 2},
        {"reshard_after_forward": "never"},
    )
    jobs = [
        llama(ranks, device="cpu", parallelism=each, training={"seq_len": tokens})
        for ranks in (2, 4)
        for each in axes
        for tokens in (256, 2048)
    ]
    return [run_of(spec, truth) for spec in jobs]


def test_the_products_of_all_ranks_are_the_flops_of_the_model() -> None:
    spec = llama(8)
    work = work_of(spec)
    whole = training_flops_per_token(spec.architecture, 4096) * spec.tokens_per_step / 8
    assert work["bfloat16_flops"] + work["attention_flops"] == pytest.approx(whole)
    assert "float32_flops" not in work


@pytest.mark.parametrize(("mode", "products"), [("none", 3.0), ("selective", 3.5), ("full", 4.0)])
def test_recomputation_repeats_products_of_blocks(mode: str, products: float) -> None:
    plain, repeated = (
        work_of(llama(8, activation_checkpoint={"mode": each}))["block_passes"]
        for each in ("none", mode)
    )
    assert repeated / plain == pytest.approx(products / 3)


def test_ranks_of_cpus_share_cores_and_those_of_gpus_do_not() -> None:
    spec = llama(4, device="cpu")
    alone = work_of(spec, CPUS)["bfloat16_flops"]
    shared = work_of(spec, NodeKind("cpu", "a processor", slots=4, cores=2))["bfloat16_flops"]
    assert shared == pytest.approx(2 * alone)
    assert NodeKind("cuda", H100, slots=8, cores=2).crowding(8) == 1


def test_ranks_that_wait_in_a_pipeline_leave_their_core_to_others() -> None:
    piped = llama(2, device="cpu", parallelism={"pp": 2})
    wide, narrow = (
        work_of(piped, NodeKind("cpu", "a processor", slots=4, cores=cores))["bfloat16_flops"]
        for cores in (4, 1)
    )
    assert wide < narrow < 2 * wide


def test_traffic_between_nodes_is_that_of_the_axes_that_leave_them() -> None:
    inside, across = work_of(llama(8, parallelism={"tp": 8})), work_of(llama(16))
    assert inside["node_bytes"] > 0
    assert "network_bytes" not in inside
    spec = llama(16)
    layout = spec.layout()
    hidden = step_work(spec, layout, partition=spec.batch_partition(layout), node=GPUS).hidden
    assert hidden["network_bytes"] > 0
    assert "network_bytes" not in across  # FSDP sends while the device computes


def test_a_gpu_hides_the_traffic_of_fsdp_behind_its_products() -> None:
    spec = llama(8)
    layout = spec.layout()
    work = step_work(spec, layout, partition=spec.batch_partition(layout), node=GPUS)
    rates = sheet()
    spent = seconds_by_quantity(work, rates.seconds)
    assert "node_bytes" not in spent
    slow = dict(rates.seconds) | {"node_bytes": 1.0}
    bound = seconds_by_quantity(work, slow)
    assert bound["node_bytes"] == work.hidden["node_bytes"]
    assert "bfloat16_flops" not in bound


def test_an_8b_on_eight_h100_is_predicted_near_what_is_published() -> None:
    spec = llama(8, activation_checkpoint={"mode": "selective"}, training={"seq_len": 8192})
    layout = spec.layout()
    seconds = predicted_seconds(
        sheet(), step_work(spec, layout, partition=spec.batch_partition(layout), node=GPUS)
    )
    utilisation = spec.flops_per_step / seconds / 8 / 989.4e12
    assert 0.35 < utilisation < 0.6  # torchtitan publishes 0.4 to 0.5 for it


def test_the_fit_finds_the_coefficients_of_exact_runs() -> None:
    prior = sheet(CPUS)
    factors = {"bfloat16_flops": 0.4, "messages": 5.0, "moved_bytes": 2.0, "node_bytes": 3.0}
    truth = prior.model_copy(
        update={"seconds": {q: s * factors.get(q, 1.0) for q, s in prior.seconds.items()}}
    )
    learned = calibrate(prior, runs(truth))
    for measured in runs(truth):
        assert predicted_seconds(learned, measured.work) == pytest.approx(
            measured.step_seconds, rel=0.03
        )
    assert learned.accuracy is not None
    assert learned.accuracy.step_p95 is not None
    assert learned.accuracy.step_p95 < 0.1
    assert learned.runs == len(runs(truth))


def test_one_run_moves_all_coefficients_together() -> None:
    prior = sheet(CPUS)
    truth = prior.model_copy(update={"seconds": {q: 3 * s for q, s in prior.seconds.items()}})
    measured = runs(truth)
    learned = calibrate(prior, measured[:1])
    for other in measured:
        assert predicted_seconds(learned, other.work) == pytest.approx(other.step_seconds, rel=0.05)


def test_a_run_that_nothing_explains_changes_little() -> None:
    prior = sheet(CPUS)
    measured = runs(prior)
    odd = MeasuredRun(measured[0].work, measured[0].memory, step_seconds=1e4)
    learned = calibrate(prior, [*measured, odd])
    errors = [
        abs(math.log(predicted_seconds(learned, each.work) / (each.step_seconds or 1)))
        for each in measured
    ]
    assert sorted(errors)[len(errors) // 2] < 0.1


def test_no_run_leaves_the_data_sheet() -> None:
    assert calibrate(sheet(), []) == sheet()
    assert sheet_rates("cuda", "an unknown GPU") is None


def test_a_fit_stays_within_its_bounds() -> None:
    fitted = fit_coefficients([(lambda c: {"a": c["a"]}, 1e12)], {"a": 1.0, "b": 1.0})
    assert fitted["a"] == pytest.approx(math.exp(6))


def test_memory_is_corrected_and_its_margin_covers_every_run() -> None:
    prior = sheet(CPUS)
    memory = prior.memory.model_copy(update={"activations": 1.6})
    measured = runs(prior.model_copy(update={"memory": memory}))
    learned = calibrate(prior, measured)
    assert len(measured) >= MARGIN_FROM
    for each in measured:
        assert each.peak_bytes is not None
        assert learned.memory_margin * predicted_bytes(learned, each.memory) >= each.peak_bytes
    assert learned.accuracy is not None
    assert learned.accuracy.memory_p95 is not None
    assert learned.accuracy.memory_p95 < 0.1


def test_a_run_out_of_memory_that_was_said_to_fit_counts_as_wrong() -> None:
    prior = sheet(CPUS)
    good = runs(prior)
    bad = MeasuredRun(good[0].work, good[0].memory, available_bytes=2**50, out_of_memory=True)
    accuracy = calibrate(prior, [*good, bad]).accuracy
    assert accuracy is not None
    assert (accuracy.fits_judged, accuracy.fits_wrong) == (len(good) + 1, 1)


def test_a_plan_ranks_layouts_that_fit_by_their_speed() -> None:
    spec = llama(8, parallelism={"tp": 8})
    slots = {Slot("cuda", H100, 85_000_000_000)}
    planned = plan(spec, slots=slots, predictor=Predictor(GPUS, sheet()))
    assert planned.speed is not None
    assert planned.ranked_of >= len(planned.ranked) > 1
    keys = [(o.fits is False, o.speed.step_seconds) for o in planned.ranked if o.speed is not None]
    assert len(keys) == len(planned.ranked)
    assert keys == sorted(keys)
    assert spec.layout() in [option.layout for option in planned.ranked]
    assert planned.ranked[0].layout != spec.layout()  # eight ranks share no matrix for 8B
    own = next(option for option in planned.ranked if option.layout == spec.layout())
    assert own.speed == planned.speed
    assert own.speed.tokens_per_second == pytest.approx(
        spec.tokens_per_step / own.speed.step_seconds
    )
    assert sum(own.speed.spent_seconds.values()) == pytest.approx(own.speed.step_seconds)


def test_a_ranked_layout_names_what_does_not_apply_on_it() -> None:
    spec = llama(8, parallelism={"tp": 8, "async_tp": True}, compile={"enabled": True})
    ranked = plan(spec, predictor=Predictor(GPUS, sheet())).ranked
    resets = {each.name: each.resets for each in ranked}
    assert resets["TP 8"] == ()
    assert resets["FSDP 8"] == ("async_tp",)


def test_a_plan_without_a_predictor_predicts_nothing() -> None:
    planned = plan(llama(8))
    assert (planned.speed, planned.ranked, planned.calibration) == (None, (), None)


def test_what_fits_follows_from_the_runs_of_the_hardware() -> None:
    spec = llama(8)
    need = plan(spec).memory.total
    slots = {Slot("cuda", H100, round(need * 1.05))}
    tight = Predictor(GPUS, sheet().model_copy(update={"runs": 9, "memory_margin": 1.2}))
    assert plan(spec, slots=slots, predictor=Predictor(GPUS, sheet())).fits is True
    assert plan(spec, slots=slots, predictor=tight).fits is False


def test_resume_options_have_their_speed() -> None:
    predictor = Predictor(GPUS, sheet())
    for option in resume_options(llama(8), world_sizes=[4, 8], predictor=predictor):
        assert option.layouts
        assert all(each.speed is not None for each in option.layouts)
