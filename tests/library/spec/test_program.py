"""The section `program`: its fields, its command line, and incompatible sections."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.client.spec_file import parse_assignment, typed_value
from trainyard.client.template import program_template
from trainyard.spec.job import TRAINER_SECTIONS, JobSpec, parse_job_spec
from trainyard.spec.rules import check_job_spec, check_new_job

PROGRAM = {"command": ["train.py"]}


def program(**fields: Any) -> JobSpec:
    return parse_job_spec({"program": PROGRAM | fields})


def problems_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the details of all problems by pointer."""
    with pytest.raises(SpecError) as refused:
        check_new_job(parse_job_spec({"program": PROGRAM} | document))
    return {problem.pointer: problem.detail for problem in refused.value.problems}


@pytest.mark.parametrize("section", TRAINER_SECTIONS)
def test_a_section_of_the_trainer_is_refused_even_with_its_defaults(section: str) -> None:
    (detail,) = problems_of({section: {}}).values()
    assert detail == (
        f"{section} belongs to the built-in trainer, and the job has a program; legal: no "
        f"{section}, or no program"
    )


def test_a_document_that_a_program_wrote_is_legal() -> None:
    whole = parse_job_spec(program().model_dump_json())
    assert {*TRAINER_SECTIONS} <= whole.model_fields_set
    check_new_job(whole)
    changed = whole.model_dump(mode="json")
    changed["training"]["steps"] = 7
    assert list(problems_of(changed)) == ["/training"]


def test_a_resume_of_it_stays_legal() -> None:
    check_job_spec(program().on_layout(program().layout(3)))


@pytest.mark.parametrize(
    ("document", "pointer", "detail"),
    [
        ({"checkpoint": {"interval_steps": 9}}, "/checkpoint/interval_steps", "no interval_steps"),
        ({"checkpoint": {"preflight": False}}, "/checkpoint/preflight", "preflight=false"),
        ({"checkpoint": {"keep_latest_k": 0, "keep_best_k": 1}}, "/checkpoint/keep_best_k", "1 on"),
        ({"resources": {"min_world_size": 1}}, "/program/resume", "legal: any_world_size"),
        ({"resources": {"world_size": 3, "nodes": 2}}, "/resources/nodes", "legal: 1, 3"),
        ({"program": {"resume_arguments": ["-r"]}}, "/program/resume_arguments", "resume='never'"),
        ({"program": {"command": [" "]}}, "/program/command", "is empty"),
        ({"program": {"working_dir": "/x"}}, "/program/working_dir", "without '..'"),
        ({"program": {"working_dir": "a/../.."}}, "/program/working_dir", "without '..'"),
        ({"program": {"code": {"folder": "mine"}}}, "/program/code/folder", "data:my-corpus"),
        ({"program": {"arguments": {"a b": 1}}}, "/program/arguments/a b", "is no name; legal: "),
        ({"program": {"arguments": {"a": None}}}, "/program/arguments/a", "valid"),
        ({"program": {"stop_grace_seconds": 3601}}, "/program/stop_grace_seconds", "3600"),
        (
            {"program": {"resume_arguments": ["{step}"], "resume": "any_world_size"}},
            "/program/resume_arguments/0",
            "{step} is no known placeholder; legal: {checkpoint}",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_legal(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    document = document | {"program": PROGRAM | document.get("program", {})}
    found = problems_of(document)
    assert list(found) == [pointer]
    assert detail in found[pointer]


def test_values_follow_the_command_in_their_order() -> None:
    given = {"b": 1e-05, "a": 3, "on": True, "off": False, "many": [1, "x", 2.5], "minus": -1}
    words = program(command=["python", "-m", "mine"], arguments=given)
    assert words.program is not None
    assert words.program.words(words.layout(), begun_before=False, checkpoint=None) == [
        *("python", "-m", "mine", "--b", "1e-05", "--a", "3", "--on"),
        *("--many", "1", "x", "2.5", "--minus=-1"),
    ]


def test_braces_that_name_nothing_are_words_as_they_are() -> None:
    words = program(resume="same_world_size", resume_arguments=['{"resume": 1}', "{checkpoint}/a"])
    assert words.program is not None
    section, layout = words.program, words.layout()
    found = section.words(layout, begun_before=True, checkpoint="/c")
    assert found[1:] == ['{"resume": 1}', "/c/a"]
    assert section.words(layout, begun_before=True, checkpoint=None)[1:] == []


def test_a_program_has_no_layout_but_its_slots() -> None:
    spec = program()
    assert (spec.kind, JobSpec().kind) == ("program", "trainer")
    assert spec.layout_name(spec.layout(4)) == "4 slots"
    assert (spec.total_steps, program(steps=5).total_steps) == (None, 5)
    assert spec.on_layout(spec.layout(4)).parallelism == JobSpec().parallelism


@pytest.mark.parametrize(
    ("given", "pointer", "detail"),
    [
        (
            {"command": "train.py --lr 3"},
            "/program/command",
            "'train.py --lr 3' is one text; legal: a list of words, such as "
            '["train.py", "--lr", "3"]',
        ),
        (
            {"arguments": {"adam": {"lr": 1}}},
            "/program/arguments/adam",
            "{'lr': 1} is nested; legal: a boolean, a number, a text, a list of them",
        ),
        (
            {"arguments": {"sizes": [[1, 2]]}},
            "/program/arguments/sizes",
            "[[1, 2]] is nested; legal: a boolean, a number, a text, a list of them",
        ),
        (
            {"arguments": {"l r": 1}},
            "/program/arguments/l r",
            "'l r' is no name; legal: letters, digits, '_', '.' and '-', beginning with a letter "
            "or '_'",
        ),
    ],
)
def test_a_value_of_another_shape_has_one_problem_with_what_is_legal(
    given: dict[str, Any], pointer: str, detail: str
) -> None:
    document = {"program": {"command": ["train.py"], **given}}
    with pytest.raises(SpecError) as caught:
        parse_job_spec(document)
    assert [(p.pointer, p.detail) for p in caught.value.problems] == [(pointer, detail)]


def test_its_values_are_part_of_the_digest() -> None:
    assert program().digest != JobSpec().digest
    assert program(arguments={"lr": 1}).digest != program(arguments={"lr": 2}).digest
    assert program(steps=None, launcher="torchrun").digest == program().digest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("program.steps=7", 7),
        ("program.launcher=command", "command"),
        ("program.arguments.lr=0.1", 0.1),
        ('program.command=["a", "b"]', ["a", "b"]),
        ("program.code.folder=data:mine", "data:mine"),
    ],
)
def test_assignments_reach_into_the_section(text: str, value: object) -> None:
    assert typed_value(parse_assignment(text)) == value


def test_the_spec_file_to_start_from_is_a_legal_program() -> None:
    import tomllib

    text = program_template("mine")
    spec = parse_job_spec(tomllib.loads(text))
    check_new_job(spec)
    assert spec.program is not None
    assert spec.program.command == ("train.py",)
    assert "[training]" not in text
    assert "interval_steps" not in text


CODE = {"folder": "data:mine"}


@pytest.mark.parametrize(
    ("environment", "pointer", "expected"),
    [
        ({"lock": "poetry.lock"}, "lock", "legal: a uv.lock, or requirements that end in .txt"),
        ({"lock": "../uv.lock"}, "lock", "must be a relative path inside the code"),
        ({"lock": "uv.lock", "prefix": "data:env"}, "", "names prefix and lock; legal: at most"),
        ({"container": "data:a.sif", "lock": "uv.lock"}, "", "names lock and container; legal"),
        ({"container": "data:a.img"}, "container", "ends in .sif (of Apptainer) or .tar (of"),
        ({"python": "3.12"}, "", "python does nothing without lock; legal: no python, or a lock"),
        ({"root": "data"}, "", "root does nothing without lock"),
        ({"lock": "uv.lock", "python": "3.12.1"}, "python", "3."),
    ],
)
def test_an_environment_is_one(environment: dict[str, str], pointer: str, expected: str) -> None:
    with pytest.raises(SpecError) as refused:
        program(code=CODE, environment=environment)
    (problem,) = refused.value.problems
    assert problem.pointer == f"/program/environment/{pointer}".rstrip("/")
    assert expected in problem.detail


def test_a_lock_is_a_file_of_the_code() -> None:
    with pytest.raises(SpecError, match=r"environment\.lock='uv\.lock' is a file of the code"):
        program(environment={"lock": "uv.lock"})
    made = program(code=CODE, environment={"lock": "inner/uv.lock", "root": "shared"}).program
    assert made is not None
    assert made.places["/program/environment/root"] == "shared:environments"


@pytest.mark.parametrize("name", ["cuda;id", "$(id)", "-h", "../x", "a b", ""])
def test_a_module_has_a_plain_name(name: str) -> None:
    with pytest.raises(SpecError):
        program(environment={"modules": [name]})
    assert program(environment={"modules": ["gcc/12.2+x", "cuda"]}).program is not None


@pytest.mark.parametrize("pattern", ["", "/etc/passwd", "../x", "a/../b", ".", "a\\b", "x" * 201])
def test_patterns_of_artifacts_stay_inside_the_folder(pattern: str) -> None:
    with pytest.raises(SpecError, match="program/artifacts/0"):
        parse_job_spec({"name": "n", "program": {"command": ["x"], "artifacts": [pattern]}})
    legal = {"command": ["x"], "artifacts": ["out/**/*.csv", "*.png"]}
    spec = parse_job_spec({"name": "n", "program": legal})
    assert spec.program is not None
    assert spec.program.artifacts == ("out/**/*.csv", "*.png")
