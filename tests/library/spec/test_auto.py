"""Values of `auto`: a table by device, and no refusal that another value would avoid."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.library.spec.test_digest import FORMER
from trainyard.base.problems import SpecError, divisors
from trainyard.spec.auto import AUTO, DeviceKind, auto_values, expected_device, resolved
from trainyard.spec.job import FIRST_DEFAULTS, JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_new_job
from trainyard.training.known_devices import Slot

OWN_MODEL = {"factory": "model:make", "code": "data:code"}
ZERO_BUBBLE = {"pp": 2, "pp_schedule": "ZBVZeroBubble"}
VALIDATED = {"validation": {"interval_steps": 30}, "data": {"validation_fraction": 0.1}}


def test_every_new_spec_leaves_these_fields_to_the_device() -> None:
    assert tuple(auto_values(JobSpec(), "cpu")) == (
        "training.log_every_steps",
        "compile.enabled",
        "checkpoint.interval_steps",
        "checkpoint.interval_seconds",
        "checkpoint.async_mode",
    )


def test_on_cpus_nothing_changes() -> None:
    assert resolved(JobSpec(), "cpu") == resolved(parse_job_spec(FORMER), "cpu")
    for path, value in auto_values(JobSpec(), "cpu").items():
        section, _, field = path.partition(".")
        assert value == FIRST_DEFAULTS[section, field]


def test_on_gpus_steps_wait_for_nothing_by_default() -> None:
    assert auto_values(JobSpec(), "cuda") == {
        "training.log_every_steps": 10,
        "compile.enabled": True,
        "checkpoint.interval_steps": 0,
        "checkpoint.interval_seconds": 600.0,
        "checkpoint.async_mode": "async_with_pinned_mem",
    }


def test_what_is_given_stays() -> None:
    spec = parse_job_spec(FORMER)
    assert auto_values(spec, "cuda") == {}
    assert resolved(spec, "cuda") is spec


@pytest.mark.parametrize(
    ("document", "device", "values"),
    [
        ({"checkpoint": {"interval_steps": 50}}, "cuda", (50, 0.0)),
        ({"checkpoint": {"interval_steps": 0}}, "cuda", (0, 0.0)),
        ({"checkpoint": {"interval_seconds": 60.0}}, "cuda", (0, 60.0)),
        ({"checkpoint": {"interval_seconds": 0.0}}, "cuda", (100, 0.0)),
        ({"checkpoint": {"interval_seconds": 60.0}}, "cpu", (100, 60.0)),
        ({"checkpoint": {"keep_every_steps": 1000}}, "cuda", (100, 0.0)),
        ({"checkpoint": {"keep_every_steps": 250}}, "cpu", (125, 0.0)),
        ({"checkpoint": {"keep_every_steps": 7919}}, "cpu", (7919, 0.0)),
        ({"checkpoint": {"keep_every_steps": 600, "interval_seconds": 60.0}}, "cuda", (100, 60.0)),
        ({"checkpoint": {"keep_best_k": 1}, **VALIDATED}, "cuda", (90, 0.0)),
        ({"checkpoint": {"keep_best_k": 1, "keep_every_steps": 600}, **VALIDATED}, "cpu", (120, 0)),
        (
            {"checkpoint": {"keep_best_k": 1, "keep_best_metric": "train/loss"}, **VALIDATED},
            "cuda",
            (0, 600.0),
        ),
    ],
)
def test_saves_go_by_steps_where_the_spec_counts_in_steps(
    document: dict[str, Any], device: DeviceKind, values: tuple[int, float]
) -> None:
    section = resolved(parse_job_spec(document), device).checkpoint
    assert (section.interval_steps, section.interval_seconds) == values


@pytest.mark.parametrize(
    ("document", "on_cpu", "on_gpu"),
    [
        ({}, False, True),
        ({"model": OWN_MODEL}, False, False),
        ({"training": {"deterministic": True}}, False, False),
        ({"activation_checkpoint": {"mode": "memory_budget"}}, True, True),
        ({"activation_checkpoint": {"mode": "full"}}, False, True),
        ({"activation_checkpoint": {"mode": "full"}, "parallelism": {"tp": 2}}, False, False),
        ({"parallelism": ZERO_BUBBLE}, False, False),
        ({"parallelism": ZERO_BUBBLE | {"pp": 1}}, False, True),
        ({"parallelism": {"tp": 2, "async_tp": True}}, True, True),
        ({"compile": {"enabled": False}}, False, False),
    ],
)
def test_blocks_are_compiled_on_gpus_where_that_is_proved(
    document: dict[str, Any], on_cpu: bool, on_gpu: bool
) -> None:
    spec = parse_job_spec(document)
    assert resolved(spec, "cpu").compile.enabled is on_cpu
    assert resolved(spec, "cuda").compile.enabled is on_gpu


def test_the_layout_of_the_attempt_counts() -> None:
    spec = parse_job_spec({"activation_checkpoint": {"mode": "full"}})
    assert resolved(spec, "cuda", Layout(dp_shard=2)).compile.enabled is True
    assert resolved(spec, "cuda", Layout(tp=2)).compile.enabled is False


def test_what_the_host_holds_already_is_not_copied_into_its_memory() -> None:
    offloaded = parse_job_spec({"optimizer": {"cpu_offload": True}})
    assert resolved(offloaded, "cuda").checkpoint.async_mode == "disabled"


def test_the_expected_device_is_the_one_that_placement_prefers() -> None:
    cpu, gpu = Slot("cpu", "a CPU", 1), Slot("cuda", "a GPU", 1)
    assert [expected_device(JobSpec(), slots) for slots in ([cpu], [gpu, cpu], [])] == [
        "cpu",
        "cuda",
        "cuda",
    ]
    pinned = parse_job_spec({"resources": {"device": "cpu"}})
    assert expected_device(pinned, [gpu]) == "cpu"


DOCUMENTS = st.fixed_dictionaries(
    {
        "training": st.fixed_dictionaries({"deterministic": st.booleans()}),
        "optimizer": st.fixed_dictionaries({"cpu_offload": st.booleans()}),
        "activation_checkpoint": st.fixed_dictionaries(
            {"mode": st.sampled_from(["none", "selective", "full", "memory_budget"])}
        ),
        "parallelism": st.fixed_dictionaries(
            {
                "tp": st.sampled_from([1, 2]),
                "pp": st.sampled_from([1, 2]),
                "pp_schedule": st.sampled_from(["1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]),
                "async_tp": st.booleans(),
            }
        ),
        "checkpoint": st.fixed_dictionaries(
            {"keep_latest_k": st.integers(0, 2)},
            optional={
                "keep_every_steps": st.integers(0, 1000),
                "keep_best_k": st.integers(0, 1),
                "interval_steps": st.sampled_from([0, 30, 100]),
                "interval_seconds": st.sampled_from([0.0, 60.0]),
            },
        ),
        "validation": st.fixed_dictionaries({"interval_steps": st.integers(0, 400)}),
        "data": st.just({"validation_fraction": 0.1}),
        "compile": st.fixed_dictionaries({}, optional={"enabled": st.booleans()}),
    }
)


@given(DOCUMENTS, st.sampled_from(["cpu", "cuda"]))
def test_auto_is_refused_only_where_every_value_is(
    document: dict[str, Any], device: DeviceKind
) -> None:
    axes = document["parallelism"]
    ranks = {"world_size": axes["tp"] * axes["pp"], "device": device}
    spec = parse_job_spec({**document, "resources": ranks})
    chosen = resolved(spec, device)
    assert auto_values(chosen, device) == {}
    assert resolved(chosen, device) == chosen
    assert _is_legal(spec) == _is_legal(chosen) == any(map(_is_legal, _every_choice(spec)))


def _is_legal(spec: JobSpec) -> bool:
    try:
        check_new_job(spec)
    except SpecError:
        return False
    return True


def _every_choice(spec: JobSpec) -> list[JobSpec]:
    """Return the spec with every mode of compilation and every possibly legal number of steps."""
    every, unit = spec.checkpoint.keep_every_steps, spec.validation.interval_steps
    steps = {100, *(divisors(every) if every else (unit or 1,))}
    return [
        spec.model_copy(
            update={
                "compile": spec.compile.model_copy(update={"enabled": enabled}),
                "checkpoint": spec.checkpoint.model_copy(update={"interval_steps": interval}),
            }
        )
        for enabled, interval in product(
            [True, False] if spec.compile.enabled == AUTO else [spec.compile.enabled],
            sorted(steps)
            if spec.checkpoint.interval_steps == AUTO
            else [spec.checkpoint.interval_steps],
        )
    ]
