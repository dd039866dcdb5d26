"""Spec files, `--set`, and the origin of each field."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem
from trainyard.client.spec_file import (
    apply,
    legal_instead,
    origin,
    parse_assignment,
    read_spec_file,
    typed_value,
)
from trainyard.client.template import spec_template
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.rules import check_job_spec

TOML = 'name = "a"\n[training]\nsteps = 5\n'
YAML = "name: a\ntraining:\n  steps: 5\n"
JSON = '{"name": "a", "training": {"steps": 5}}'


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.json", JSON)]
)
def test_the_same_spec_in_each_format(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_spec_file(file) == {"name": "a", "training": {"steps": 5}}


def test_an_empty_yaml_file_is_a_spec_of_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing\n")
    assert read_spec_file(tmp_path / "a.yaml") == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", ".toml, .yaml, .yml, .json"),
        ("a.toml", "steps = ", "a.toml is not valid TOML: Invalid value"),
        ("a.json", "[1]", "needs a table of fields"),
        ("a.yaml", "a: [", "expected the node content"),
        ("a.json", '{"a": {"lr": 1, "lr": 2}}', "/a/lr: key='lr' is given twice"),
        ("a.yaml", "a:\n  lr: 1\n  lr: 2", "line 3: the key 'lr' is given twice"),
        ("a.toml", "lr = 1\nlr = 2", "Cannot overwrite a value"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_with_the_reason(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said.replace(".", r"\.")) as caught:
        read_spec_file(tmp_path / name)
    assert name in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.toml: No such file"):
        read_spec_file(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("training.steps=200", {"training": {"steps": 200}}),
        ("optimizer.lr=3e-4", {"optimizer": {"lr": 3e-4}}),
        ("optimizer.lr=1", {"optimizer": {"lr": 1}}),
        ("name=7", {"name": "7"}),
        ("name=llama-7", {"name": "llama-7"}),
        ("model.size=8B", {"model": {"size": "8B"}}),
        ('name="quoted"', {"name": "quoted"}),
        ("checkpoint.preflight=false", {"checkpoint": {"preflight": False}}),
        ("checkpoint.writers=4", {"checkpoint": {"writers": 4}}),
        ("checkpoint.writers=all", {"checkpoint": {"writers": "all"}}),
        ('tags=["a", "b"]', {"tags": ["a", "b"]}),
        ('retry.on=["hang"]', {"retry": {"on": ["hang"]}}),
        ("env.NCCL_DEBUG=1", {"env": {"NCCL_DEBUG": "1"}}),
        ("model.arguments.width=128", {"model": {"arguments": {"width": 128}}}),
        ("model.arguments.norm=rms", {"model": {"arguments": {"norm": "rms"}}}),
        ("data.path=data:a=b", {"data": {"path": "data:a=b"}}),
        ("training={steps = 3}", {"training": {"steps": 3}}),
        # No type fits: the value stays in TOML's type, and the server lists the legal values.
        ("training.steps=many", {"training": {"steps": "many"}}),
        ("nonsense.field=3", {"nonsense": {"field": 3}}),
    ],
)
def test_set_takes_the_type_of_the_spec(text: str, document: dict[str, Any]) -> None:
    assert apply({}, [parse_assignment(text)]) == document


@pytest.mark.parametrize(
    "text", ["2024_01_02", "007", "0x10", "+5", "inf", "2024-01-02", "10:30:00"]
)
def test_a_number_of_an_argument_is_one_as_json_writes_it(text: str) -> None:
    for field in ("program.arguments.run", "env.RUN"):
        assert typed_value(parse_assignment(f"{field}={text}")) == text
    assert typed_value(parse_assignment("program.arguments.run=1e-3")) == 1e-3
    assert typed_value(parse_assignment("training.steps=1_000")) == 1000


def test_later_assignments_win_and_an_empty_one_takes_out() -> None:
    given = {"training": {"steps": 1, "seed": 3}, "name": "a"}
    texts = ("training.steps=2", "training.steps=5", "training.seed=")
    result = apply(given, [parse_assignment(text) for text in texts])
    assert result == {"training": {"steps": 5}, "name": "a"}
    assert given["training"] == {"steps": 1, "seed": 3}


@pytest.mark.parametrize("text", ["training.steps", "=3", "training.=3", ".steps=3"])
def test_an_assignment_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"section\.field=value"):
        parse_assignment(text)


def test_a_value_is_no_section() -> None:
    with pytest.raises(ValueError, match="name holds a value"):
        apply({"name": "a"}, [parse_assignment("name.first=b")])


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/training/steps", "--set training.steps=0"),
        ("/training/seed", "job.toml: training.seed"),
        ("/env/A", "--set env={A = 1}"),
        ("/training", "--set training.steps=0"),
        ("", "job.toml"),
    ],
)
def test_a_problem_is_traced_to_where_it_was_written(pointer: str, expected: str) -> None:
    assignments = [parse_assignment(t) for t in ("env={A = 1}", "training.steps=0")]
    problem = Problem(pointer=pointer, detail="wrong")
    assert origin(problem, file=Path("job.toml"), assignments=assignments) == expected


@pytest.mark.parametrize(
    ("pointer", "meant"),
    [
        ("/training/stepps", "did you mean training.steps?"),
        ("/trainin", "did you mean training?"),
        ("/program/code/locale", "did you mean program.code.local?"),
        ("/program/code/zzz", "legal: folder, pack, local, git, commit, include"),
        ("/name/first", None),
        ("/nowhere/steps", None),
    ],
)
def test_an_unknown_field_is_compared_with_the_known_ones(pointer: str, meant: str | None) -> None:
    assert legal_instead(Problem(pointer=pointer, detail="unknown field")) == meant


def test_the_template_is_a_legal_spec_also_with_every_default_uncommented() -> None:
    text = spec_template("mine")
    spec = parse_job_spec(tomllib.loads(text))
    check_job_spec(spec)
    assert spec.name == "mine"
    lines = [
        line.removeprefix("# ") if " = " in line and not line.startswith("# `") else line
        for line in text.splitlines()
    ]
    uncommented = tomllib.loads("\n".join(lines))
    assert uncommented["retry"]["max_retries"] == 2
    assert parse_job_spec(uncommented).training == spec.training
    assert max(map(len, text.splitlines())) <= 100


def test_the_template_names_every_field_of_every_section() -> None:
    text = spec_template("mine")
    bare = "\n".join(
        re.sub(r"^(# )?(\w+) =.*", r"\2 = 0", line)
        for line in text.splitlines()
        if re.match(r"\[|(# )?\w+ =", line)
    )
    written = tomllib.loads(bare)
    for name, field in JobSpec.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, SpecModel):
            assert list(written[name]) == list(kind.model_fields)
