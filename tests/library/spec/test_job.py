"""Reading a job spec: refusals, with the exact place and the legal values."""

import datetime
import json
from typing import Any

import pytest

from trainyard.base.problems import Problem, SpecError
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout


def problems_of(source: Any) -> dict[str, str]:
    """Return the details by pointer, each pointer once."""
    with pytest.raises(SpecError) as refused:
        parse_job_spec(source)
    found: tuple[Problem, ...] = refused.value.problems
    details = {problem.pointer: problem.detail for problem in found}
    assert len(details) == len(found)
    return details


@pytest.mark.parametrize(
    ("document", "pointer", "detail"),
    [
        ({"name": "a b"}, "/name", "'a b' is no name; legal: letters, digits, '.', '_' and '-',"),
        ({"tags": [""]}, "/tags/0", "'' is no name; legal: letters, digits, '.', '_', ':', '/'"),
        ({"checkpoint": {"root": "A"}}, "/checkpoint/root", "'A' is no name; legal: lower-case"),
    ],
)
def test_a_wrong_name_is_refused_with_what_is_legal_in_words(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    ((where, said),) = problems_of(document).items()
    assert (where, said[: len(detail)]) == (pointer, detail)


def test_an_empty_document_is_a_job_of_defaults() -> None:
    assert parse_job_spec({}) == parse_job_spec("{}") == parse_job_spec(b"{}") == JobSpec()


def test_a_spec_survives_the_wire() -> None:
    spec = parse_job_spec({"tags": ["a"], "env": {"A": "1"}, "retry": {"on": ["hang"]}})
    assert parse_job_spec(spec.model_dump_json()) == spec
    assert parse_job_spec(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"nmae": "x"}, "/nmae"),
        ({"training": {"stepz": 3}}, "/training/stepz"),
        ({"training": {"a/b~c": 1}}, "/training/a~1b~0c"),
        ({"world_size": 2}, "/world_size"),
        ({1: "a number as a key, as YAML allows"}, "/1"),
    ],
)
def test_an_unknown_field_is_named(document: dict[Any, Any], pointer: str) -> None:
    assert problems_of(document) == {pointer: "unknown field"}


@pytest.mark.parametrize(
    ("document", "pointer", "detail"),
    [
        ({"training": {"steps": "8"}}, "/training/steps", "a valid integer, got '8'"),
        ({"training": {"steps": True}}, "/training/steps", "a valid integer, got True"),
        ({"training": {"steps": 8.0}}, "/training/steps", "a valid integer, got 8.0"),
        ({"optimizer": {"lr": "1"}}, "/optimizer/lr", "a valid number, got '1'"),
        ({"checkpoint": {"preflight": 1}}, "/checkpoint/preflight", "a valid boolean, got 1"),
        ({"name": 7}, "/name", "a valid string, got 7"),
        ({"tags": "x"}, "/tags", "a valid array, got 'x'"),
        ({"tags": ["fine", 3]}, "/tags/1", "a valid string, got 3"),
        ({"training": []}, "/training", "an object"),
        ({"training": None}, "/training", "an object"),
        ({"model": {"family": "gpt"}}, "/model/family", "'llama3' or 'qwen3', got 'gpt'"),
        (
            {"parallelism": {"pp_stage_modules": [["a"], [1]]}},
            "/parallelism/pp_stage_modules/1/0",
            "a valid string, got 1",
        ),
    ],
)
def test_a_wrong_type_is_refused_with_what_was_given(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    ((where, said),) = problems_of(document).items()
    assert where == pointer
    assert said == f"Input should be {detail}"


def test_a_field_of_two_types_gives_one_problem() -> None:
    (detail,) = problems_of({"checkpoint": {"writers": "some"}}).values()
    assert detail == (
        "Input should be 'auto', 'all' or 'one_replica', got 'some' or: "
        "Input should be a valid integer, got 'some'"
    )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_as_text(number: str) -> None:
    details = problems_of(f'{{"optimizer": {{"lr": {number}, "eps": {number}}}}}')
    assert set(details) == {"/optimizer/lr", "/optimizer/eps"}
    assert all(d.startswith("Input should be a finite number, got ") for d in details.values())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_as_objects(number: float) -> None:
    assert set(problems_of({"guard": {"spike_factor": number}})) == {"/guard/spike_factor"}


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"training": {"steps": 0}}, "/training/steps"),
        ({"training": {"seed": 2**63}}, "/training/seed"),
        ({"training": {"seq_len": 1}}, "/training/seq_len"),
        ({"optimizer": {"lr": 0}}, "/optimizer/lr"),
        ({"optimizer": {"beta1": 1.0}}, "/optimizer/beta1"),
        ({"model": {"dropout": 1.0}}, "/model/dropout"),
        ({"resources": {"world_size": 0}}, "/resources/world_size"),
        ({"resources": {"world_size": 65_537}}, "/resources/world_size"),
        ({"parallelism": {"dp_replicate": 0}}, "/parallelism/dp_replicate"),
        ({"parallelism": {"dp_shard": -2}}, "/parallelism/dp_shard"),
        ({"parallelism": {"tp": -1}}, "/parallelism/tp"),
        ({"name": "x" * 81}, "/name"),
        ({"name": ""}, "/name"),
        ({"tags": ["t"] * 33}, "/tags"),
    ],
)
def test_what_is_out_of_bounds_is_refused(document: dict[str, Any], pointer: str) -> None:
    assert set(problems_of(document)) == {pointer}


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"name": "a\x00b"}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "ab\n"}, "/name"),
        ({"name": "a\x1b[31m"}, "/name"),
        ({"name": "ab\u202e"}, "/name"),
        ({"tags": ["a\x07"]}, "/tags/0"),
        ({"description": "a\x1b[2J"}, "/description"),
        ({"description": "a\u202eb"}, "/description"),
        ({"data": {"source": "text", "path": "data:a\nb"}}, "/data/path"),
        ({"env": {"A": "\x00"}}, "/env/A"),
        ({"env": {"A\n": "b"}}, "/env"),
    ],
)
def test_control_characters_are_refused(document: dict[str, Any], pointer: str) -> None:
    ((where, detail),) = problems_of(document).items()
    assert where == pointer
    assert detail.isprintable()


def test_a_description_may_have_lines_and_tabs() -> None:
    assert parse_job_spec({"description": "one\n\ttwo"}).description == "one\n\ttwo"


@pytest.mark.parametrize(
    "place",
    [
        "data:../x",
        "data:a/../../x",
        "data:/etc/shadow",
        "/etc/shadow",
        "etc/shadow",
        "file:///etc/shadow",
        "http://169.254.169.254/latest",
        "Data:x",
        "data:",
        ":x",
        "data:a\x00b",
    ],
)
def test_a_place_outside_its_root_is_refused(place: str) -> None:
    document = {"data": {"source": "text", "path": place}}
    assert set(problems_of(document)) == {"/data/path"}


def test_a_date_of_toml_or_yaml_is_its_text() -> None:
    document = {"description": datetime.date(2026, 1, 31)}
    assert parse_job_spec(document).description == "2026-01-31"


def test_a_hang_needs_some_silence() -> None:
    # A limit of 0 would end every run at its first step; it does not mean "never".
    assert set(problems_of({"guard": {"hang_seconds": 0}})) == {"/guard/hang_seconds"}


def test_reserved_environment_is_refused() -> None:
    assert problems_of({"env": {"NCCL_DEBUG": "INFO", "RANK": "0"}}) == {
        "/env": "RANK is set by the launcher and cannot be chosen"
    }
    assert problems_of({"env": {"CUDA_VISIBLE_DEVICES": "7"}}) == {
        "/env": "CUDA_VISIBLE_DEVICES is set by the launcher and cannot be chosen"
    }
    assert problems_of({"env": {"1A": ""}}) == {
        "/env": "'1A' is no name of an environment variable"
    }


def test_all_problems_are_named_at_once() -> None:
    document = {"nmae": "x", "training": {"steps": "8"}, "optimizer": {"lr": -1}}
    assert set(problems_of(document)) == {"/nmae", "/training/steps", "/optimizer/lr"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", b"\xff", "[" * 100_000, '{"a":' * 300]
)
def test_what_is_no_object_is_a_problem_of_the_document(text: str | bytes) -> None:
    assert set(problems_of(text)) == {""}


def test_what_json_cannot_hold_is_a_problem_of_the_document() -> None:
    cycle: dict[str, Any] = {}
    cycle["training"] = cycle
    for document in (cycle, {datetime.date(2026, 1, 1): "a date as a key"}):
        assert set(problems_of(document)) == {""}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"env": {"API_KEY": "hunter2\x00"}}),
        json.dumps({"env": {"API_KEY": ["hunter2"]}}),
        json.dumps({"env": "hunter2"}),
        '{"env": {"API_KEY": "hunter2"}',
    ],
)
def test_values_of_the_environment_are_never_shown(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_job_spec(text)
    assert "hunter2" not in str(refused.value)


def test_long_values_are_cut() -> None:
    (detail,) = problems_of({"name": "!" * 5000}).values()
    assert len(detail) < 200


def test_the_digest_is_that_of_the_effective_spec() -> None:
    assert parse_job_spec({"training": {"steps": 100}}).digest == JobSpec().digest
    assert parse_job_spec({"training": {"steps": 101}}).digest != JobSpec().digest


def test_shapes_of_the_spec_replace_those_of_the_size() -> None:
    shape = parse_job_spec({"model": {"size": "8B", "n_layers": 2}}).architecture
    assert (shape.n_layers, shape.dim) == (2, 4096)


@pytest.mark.parametrize("value", [0, None, 0.5])
def test_gradients_are_clipped_to_a_norm_or_never(value: float | None) -> None:
    assert parse_job_spec({"training": {"max_grad_norm": value}}).training.max_grad_norm == value
    with pytest.raises(SpecError, match="greater than or equal to 0"):
        parse_job_spec({"training": {"max_grad_norm": -1}})


PIPELINE: dict[str, Any] = {
    "pp": 2,
    "pp_microbatches": 4,
    "pp_layers_per_stage": 3,
    "pp_stage_modules": [["a"], ["b"]],
}
FOUR = {"training": {"global_batch_size": 16}, "resources": {"world_size": 4}}


@pytest.mark.parametrize(
    ("layout", "kept"),
    [
        (Layout(dp_shard=2, pp=2), set(PIPELINE)),
        (Layout(dp_shard=2, tp=2, pp=2), set(PIPELINE)),  # equally many pipelines, of wider stages
        (Layout(dp_shard=4, pp=2), {"pp", "pp_layers_per_stage", "pp_stage_modules"}),
        (Layout(dp_shard=2, pp=4), set()),
        (Layout(dp_shard=2), set()),
    ],
)
def test_another_pipeline_derives_its_stages_and_micro_batches_anew(
    layout: Layout, kept: set[str]
) -> None:
    moved = parse_job_spec(FOUR | {"parallelism": PIPELINE}).on_layout(layout)
    assert moved.layout() == layout
    assert moved.resources.world_size == layout.world_size
    derived = {"pp_microbatches": None, "pp_layers_per_stage": None, "pp_stage_modules": ()}
    given = parse_job_spec({"parallelism": PIPELINE}).parallelism
    for field, value in derived.items():
        expected = getattr(given, field) if field in kept else value
        assert getattr(moved.parallelism, field) == expected


def test_axes_that_do_not_fill_the_slots_give_no_pipelines() -> None:
    spec = parse_job_spec({"parallelism": PIPELINE, "resources": {"world_size": 3}})
    assert spec.on_layout(Layout(dp_shard=2, pp=2)).parallelism.pp_microbatches is None


@pytest.mark.parametrize(("tp", "kept"), [(4, True), (3, True), (1, False)])
def test_asynchronous_tensor_parallelism_ends_with_its_axis(tp: int, kept: bool) -> None:
    spec = parse_job_spec(FOUR | {"parallelism": {"tp": 4, "async_tp": True}})
    assert spec.on_layout(Layout(tp=tp)).parallelism.async_tp is kept


def test_a_choice_that_never_applied_is_no_fault_of_the_move() -> None:
    spec = parse_job_spec({"parallelism": {"async_tp": True}})
    assert spec.on_layout(Layout(dp_shard=2)).parallelism.async_tp
    untouched = spec.on_layout(Layout())
    assert untouched.parallelism.dp_shard == 1
    assert untouched.model_copy(update={"parallelism": spec.parallelism}) == spec
