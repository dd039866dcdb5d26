"""The plan of a job, its warnings, and the options of a resume."""

from typing import Any

import pytest

from tests.library.planner.specs_for_tests import job, slots_of
from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan, resume_options
from trainyard.planner.results import Plan, ResumeOption
from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import parse_job_spec
from trainyard.training.known_devices import Slot


def warnings_of(world_size: int = 1, **sections: dict[str, Any]) -> dict[str, str]:
    return {w.pointer: w.detail for w in plan(job(world_size, **sections)).warnings}


def test_the_numbers_of_a_plan() -> None:
    made = plan(job(2, training={"steps": 600, "seq_len": 128, "global_batch_size": 16}))
    assert (made.world_size, made.name) == (2, "FSDP 2")
    assert made.tokens_per_step == 16 * 128
    assert made.total_tokens == 600 * 16 * 128
    assert made.flops_per_step == made.tokens_per_step * made.flops_per_token
    assert made.total_flops == 600 * made.flops_per_step
    # Embedding and head of 320 x 64, four blocks, one last norm.
    block = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192 + 2 * 64
    assert made.parameters.total == 2 * 320 * 64 + 4 * block + 64
    assert made.checkpoint_bytes == 12 * made.parameters.total
    assert made.checkpoints_bytes == made.checkpoints_kept * made.checkpoint_bytes
    assert (made.fits, made.warnings) == (None, ())


def test_a_plan_survives_the_wire() -> None:
    made = plan(job(3))
    assert Plan.model_validate_json(made.model_dump_json()) == made
    options = resume_options(job(), world_sizes=[1, 40])
    texts = [option.model_dump_json() for option in options]
    assert [ResumeOption.model_validate_json(text) for text in texts] == options


def test_a_job_that_cannot_run_has_no_plan() -> None:
    with pytest.raises(SpecError) as refused:
        plan(job(model={"n_kv_heads": 3}))
    assert [p.pointer for p in refused.value.problems] == ["/model/n_kv_heads"]


def test_idle_ranks_are_said_with_a_size_that_wastes_less() -> None:
    assert warnings_of(3) == {
        "/training/micro_batch_size": (
            "33 % of the ranks' sequence slots stay idle: 4 micro-batches of up to 4 on "
            "3 data-parallel ranks; micro_batch_size=3 leaves less"
        )
    }
    training = {"global_batch_size": 5, "micro_batch_size": 1}
    assert warnings_of(4, training=training)["/training/micro_batch_size"].endswith(
        "5 micro-batches of up to 1 on 4 data-parallel ranks"
    )
    # A tenth or less is no warning: 16 sequences in 3 x 6 slots leave a ninth idle, 32 in 33 less.
    training = {"global_batch_size": 32, "micro_batch_size": 1}
    assert warnings_of(3, training=training) == {}


def test_memory_is_said_only_when_it_does_not_fit() -> None:
    needed = plan(job()).memory.total
    assert plan(job(), slots=slots_of(needed)).warnings == ()
    (warning,) = plan(job(), slots=slots_of(needed - 1)).warnings
    assert warning.pointer == "/training/micro_batch_size"
    assert "GiB" in warning.detail


def test_a_kind_of_slot_that_no_node_has_is_said() -> None:
    cpus = [Slot("cpu", "CPU", 2**34)]
    (warning,) = plan(job(resources={"device": "cuda"}), slots=cpus).warnings
    assert warning.pointer == "/resources/device"
    assert warning.detail == "no node has a slot of device='cuda': the job waits until one joins"
    assert plan(job(resources={"device": "cuda"})).warnings == ()


def test_memory_is_of_the_kind_of_slots_that_the_plan_is_for() -> None:
    slots = [Slot("cpu", "CPU", 2**20), Slot("cuda", "A", 2**37), Slot("cuda", "B", 2**36)]
    for device, chosen, memory in (("auto", "cuda", 2**36), ("cpu", "cpu", 2**20)):
        planned = plan(job(resources={"device": device}), slots=slots)
        assert (planned.device, planned.device_memory_bytes) == (chosen, memory)


def test_weights_in_bfloat16_are_warned_of() -> None:
    training = {"param_dtype": "bfloat16", "weight_dtype": "bfloat16"}
    said = warnings_of(training=training, optimizer={"state_dtype": "bfloat16"})
    assert "an update below 2^-9 of the weight is lost" in said.pop("/training/weight_dtype")
    assert said == {}
    assert warnings_of(training={"param_dtype": "bfloat16"}) == {}


def test_vocabulary_rows_beyond_padding_are_said() -> None:
    assert warnings_of(model={"vocab_size": 320}) == {}
    assert warnings_of(model={"size": "1B"}) == {
        "/model/vocab_size": (
            "127,997 of 128,256 vocabulary rows are never used: the byte tokenizer has 259 tokens "
            "(vocab_size=320 holds them)"
        )
    }


@pytest.mark.parametrize(
    ("sections", "pointer", "detail"),
    [
        (
            {"training": {"steps": 20}, "lr_schedule": {"warmup_steps": 11}},
            "/lr_schedule/warmup_steps",
            "warmup_steps=11 is more than half of the 20 steps",
        ),
        (
            {"training": {"steps": 20}, "lr_schedule": {"warmup_tokens": 21_000}},
            "/lr_schedule/warmup_tokens",
            "warmup_tokens=21000 is more than half of the 20 steps",
        ),
        (
            {"training": {"steps": 60}, "checkpoint": {"interval_steps": 61}},
            "/checkpoint/interval_steps",
            "interval_steps=61 is beyond the 60 steps: nothing is saved before the end",
        ),
        (
            {"training": {"steps": 60}, "lr_schedule": {"total_steps": 50}},
            "/lr_schedule/total_steps",
            "the schedule ends at step 50: the other 10 of 60 steps run at its last rate",
        ),
        (
            {"training": {"steps": 60}, "lr_schedule": {"total_steps": 70}},
            "/lr_schedule/total_steps",
            "the schedule ends at step 70, after the last of 60 steps: the rate never reaches "
            "its end",
        ),
    ],
)
def test_a_probable_mistake_is_a_warning(
    sections: dict[str, dict[str, Any]], pointer: str, detail: str
) -> None:
    sections = {"checkpoint": {"interval_steps": 10}} | sections
    assert warnings_of(1, **sections) == {pointer: detail}


def test_what_just_meets_the_limits_is_silent() -> None:
    sections: dict[str, dict[str, Any]] = {
        "training": {"steps": 20},
        "lr_schedule": {"warmup_steps": 10, "total_steps": 20},
        "checkpoint": {"interval_steps": 20},
    }
    assert warnings_of(1, **sections) == {}


def test_more_steps_on_a_resume_keep_the_schedule_and_say_so() -> None:
    spec = Overrides(steps=150).apply(job())
    (warning,) = plan(spec).warnings
    assert (warning.pointer, warning.detail) == (
        "/lr_schedule/total_steps",
        "the schedule ends at step 100: the other 50 of 150 steps run at its last rate",
    )


def test_resume_options_answer_for_each_world_size() -> None:
    options = resume_options(job(2), world_sizes=range(1, 19), slots=slots_of(2**40))
    assert [option.world_size for option in options] == list(range(1, 19))
    by_size = {option.world_size: option for option in options}
    names = [o.name for o in by_size[6].layouts]
    assert names[:4] == ["FSDP 6", "HSDP 2x3", "HSDP 3x2", "DDP 6"]
    assert all(o.fits for option in options for o in option.layouts)
    assert not by_size[17].layouts
    assert "17 data-parallel ranks are more than the global_batch_size=16" in (
        by_size[17].reason or ""
    )


def test_a_chosen_option_is_a_legal_plan() -> None:
    spec = job(2)
    for option in resume_options(spec, world_sizes=range(1, 17)):
        for chosen in option.layouts:
            assert chosen.batch is not None
            overrides = Overrides.model_validate(
                {
                    "parallelism": spec.parallelism.model_copy(update=chosen.layout.model_dump()),
                    "micro_batch_size": chosen.batch.micro_batch_size,
                    "resources": spec.resources.model_copy(
                        update={"world_size": option.world_size}
                    ),
                }
            )
            made = plan(overrides.apply(spec))
            assert (made.layout, made.batch) == (chosen.layout, chosen.batch)
            assert made.memory == chosen.memory


@pytest.mark.parametrize(
    ("ranks", "share"), [(8, None), (7, "100 %"), (6, "60 %"), (5, "100 %"), (4, None), (3, "60 %")]
)
def test_ranks_that_do_not_divide_the_rows_of_float8_weights_are_warned_of(
    ranks: int, share: str | None
) -> None:
    spec = job(
        quantization={"recipe": "float8_tensorwise"},
        model={"dim": 128, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192},
        training={"param_dtype": "bfloat16", "global_batch_size": 840},
        parallelism={"dp_shard": ranks},
        resources={"device": "cpu", "world_size": ranks},
    )
    warnings = {w.detail for w in plan(spec).warnings if "rows" in w.detail and "FSDP" in w.detail}
    if share is None:
        assert warnings == set()
        return
    (detail,) = warnings
    assert f"{ranks} ranks do not divide the rows of {share} of the weights" in detail
    assert "in bfloat16, with messages 2 x as large as in float8; the result is the same" in detail


def test_float8_without_compiled_blocks_is_warned_of_on_gpus() -> None:
    recipe: dict[str, Any] = {
        "quantization": {"recipe": "float8_tensorwise"},
        "model": {"dim": 128, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192},
    }

    def said(*, device: str, enabled: bool) -> list[str]:
        spec = job(resources={"device": device}, compile={"enabled": enabled}, **recipe)
        slots = [Slot(device="cpu" if device == "cpu" else "cuda", name="?", memory_bytes=2**40)]
        return [warning.pointer for warning in plan(spec, slots=slots).warnings]

    assert "/compile/enabled" in said(device="cuda", enabled=False)
    assert "/compile/enabled" not in said(device="cuda", enabled=True)
    assert "/compile/enabled" not in said(device="cpu", enabled=False)


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [
        ({"interval_steps": 100}, 4),  # the three newest, and one in progress
        ({"interval_steps": 100, "keep_latest_k": 0}, 10),
        ({"interval_steps": 0}, 1),
        ({"interval_steps": 100, "keep_every_steps": 500}, 6),
    ],
)
def test_the_plan_names_the_checkpoints_that_lie_there_at_once(
    checkpoint: dict[str, int], kept: int
) -> None:
    made = plan(parse_job_spec({"training": {"steps": 1000}, "checkpoint": checkpoint}))
    assert made.checkpoints_kept == kept
