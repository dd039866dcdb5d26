"""`trainyard.wandb`: a script of wandb's tutorials with its import changed, and each call."""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import PIL.Image
import pytest
import torch

import trainyard.wandb as wandb
from trainyard.run import session
from trainyard.run.artifacts import artifact_log
from trainyard.run.limits import MAX_WARNINGS, WarnedNames
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace

ROOT = Path(__file__).parents[3]
# As wandb's quickstart and its guide on metrics have it, but for the first line.
SCRIPT = """
import trainyard.wandb as wandb
import random

wandb.login()
run = wandb.init(
    entity="my-team",
    project="my-project",
    tags=["a tag"],
    config={"learning_rate": 0.02, "architecture": "CNN", "epochs": 10},
)
run.define_metric("acc", summary="max")
epochs = wandb.config.epochs
offset = random.random() / 5
for epoch in range(2, epochs):
    acc = 1 - 2**-epoch - random.random() / epoch - offset
    loss = 2**-epoch + random.random() / epoch + offset
    run.log({"acc": acc, "loss": loss, "train": {"lr": wandb.config["learning_rate"]}})
    if epoch == 5:
        pixels = memoryview(bytes(12)).cast("B", (2, 2, 3))
        wandb.log({"examples": [wandb.Image(pixels, caption="one")]}, commit=False)
        wandb.log({"h": wandb.Histogram([1, 2]), "t": wandb.Table(columns=["a"])}, commit=False)
wandb.watch(None, log="all")
wandb.alert(title="Low accuracy", text="it is low")
wandb.save("model.h5")
wandb.log_artifact("/etc/hostname", name="host", type="text file")
wandb.summary["best"] = wandb.run.summary["acc"]
run.finish()
"""


def script(folder: Path | None, code: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    """Run a script in a bare interpreter."""
    head = f"import sys; sys.path.insert(0, {str(ROOT / 'library')!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + code],
        env={} if folder is None else {"TRAINYARD_RUN": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def records(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(found["step"], found["values"]) for found in map(json.loads, lines)]


def artifacts(folder: Path) -> list[tuple[str, str, int, bytes]]:
    """Return name, kind, step and content of what was logged."""
    found = []
    for line in (folder / "artifacts" / "rank-0.jsonl").read_text().splitlines():
        record = json.loads(line)
        name = record["file"]
        content = b"" if name is None else (folder / "artifacts" / name).read_bytes()
        found.append((record["name"], record["kind"], record["step"], content))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run directory of a process whose run has just begun."""
    (tmp_path / "spec.json").write_text('{"name": "n", "program": {"arguments": {"lr": 1}}}')
    own = Run(tmp_path, ProcessPlace())
    monkeypatch.setattr(session, "init", lambda: own)
    monkeypatch.setattr(wandb, "_warned", WarnedNames())
    yield tmp_path
    wandb.finish()
    own.close()


def test_a_tutorial_runs_with_its_import_changed(tmp_path: Path) -> None:
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr
    found = records(tmp_path)
    assert [step for step, _ in found] == list(range(8))
    assert all({*values} == {"acc", "loss", "train.lr"} for _, values in found)
    for name in ("init", "watch", "alert", "save('model.h5')", "define_metric"):
        assert done.stderr.count(f"wandb.{name} ") == 1, done.stderr
    assert "takes no entity, project" in done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["config"] == {"learning_rate": 0.02, "architecture": "CNN", "epochs": 10}
    assert facts["summary"] == {"best": found[-1][1]["acc"]}
    assert facts["tags"] == ["a-tag"]
    assert [(name, kind, step) for name, kind, step, _ in artifacts(tmp_path)] == [
        ("examples/0", "image", 4),
        ("h", "histogram", 4),
        ("t.json", "table", 4),
        ("host/hostname", "text_file", 8),
    ]


def test_outside_of_a_job_it_runs_as_well(tmp_path: Path) -> None:
    assert script(None).returncode == 0
    assert [*tmp_path.iterdir()] == []


def test_the_end_of_the_script_writes_what_is_left(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        "import trainyard.wandb as wandb\n"
        "wandb.init()\n"
        "wandb.log({'a': 1}, step=3)\n"
        "wandb.log({'b': 2}, step=3)\n"
        "wandb.log({'a': 3}, step=7)\n",
    )
    assert done.returncode == 0, done.stderr
    assert records(tmp_path) == [(3, {"a": 1.0, "b": 2.0}), (7, {"a": 3.0})]


def test_values_of_a_step_are_collected_until_the_next(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    run.log({"a": 1}, commit=False)
    run.log({"b": math.nan})
    assert run.step == 1
    run.log({"a": 2}, step=5)
    run.log({"a": 3}, step=5)
    run.log({"a": 9}, step=4)
    assert "step 4 is before 5" in caplog.text
    run.log({"a": 9}, step=cast(Any, 5.5))
    run.log({"a": 3}, step=np.int64(5))
    run.log({"a": 9}, step=cast(Any, 4.0))
    run.log({"a": 3}, step=cast(Any, 5.0))
    run.log({"c": True}, commit=True)
    assert run.step == 6
    wandb.finish()
    first, second = records(folder)
    assert first == (0, {"a": 1.0, "b": "NaN"})
    assert second == (5, {"a": 3.0, "c": 1.0})
    with pytest.raises(wandb.Error, match="after wandb"):
        run.log({"a": 1})
    with pytest.raises(wandb.Error, match="before wandb"):
        wandb.log({"a": 1})


def test_config_has_the_arguments_of_the_job(folder: Path) -> None:
    run = wandb.init(config=argparse.Namespace(depth=3))
    assert (run.config.lr, run.config["depth"], wandb.config.depth) == (1, 3, 3)
    run.config.update({"lr": 2}, allow_val_change=True)
    run.config.setdefaults({"lr": 5, "width": 7})
    run.config.seed = 9
    assert run.config.as_dict() == {"lr": 2, "depth": 3, "width": 7, "seed": 9}
    with pytest.raises(AttributeError, match="no value 'none'; there are: lr"):
        _ = run.config.none
    assert wandb.init() is run
    assert (run.name, run.dir) == ("n", str(folder))


def test_summary_has_the_last_values(folder: Path) -> None:
    with wandb.init() as run:
        run.log({"acc": 0.5, "deep": {"er": 1}})
        run.log({"acc": 0.4})
        run.summary["best"] = 0.5
        assert dict(run.summary) == {"acc": 0.4, "deep.er": 1.0, "best": 0.5}
    assert wandb.run is None


def test_a_run_that_has_ended_is_not_started_again(folder: Path) -> None:
    first = wandb.init()
    first.log({"loss": 2.0})
    first.finish()
    second = wandb.init()
    assert second is not first
    wandb.log({"loss": 1.0}, step=4)
    first.finish()
    assert wandb.run is second
    wandb.finish()
    assert [(step, values["loss"]) for step, values in records(folder)] == [(0, 2.0), (4, 1.0)]


def test_what_it_lacks_warns_once_by_name(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trainyard"):
        run = wandb.init(name="x", mode="offline")
        for _ in range(3):
            run.log_code("file")
            wandb.plot.confusion_matrix(preds=[1])
            run.log({"text": "words", "many": [1, 2], "image": wandb.Image("path")})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len({*messages}) == 6
    assert messages[0].startswith("wandb.init takes no name")
    assert not (folder / "metrics.jsonl").exists()
    for name in ("sweep", "agent", "Api"):
        with pytest.raises(wandb.Error, match=f"wandb.{name} does not exist"):
            getattr(wandb, name)
    with pytest.raises(wandb.Error, match="use_artifact"):
        run.use_artifact("a:latest")
    with pytest.raises(AttributeError, match="no 'loog'"):
        _ = wandb.loog


def shown(content: bytes) -> Any:
    return np.asarray(PIL.Image.open(io.BytesIO(content)))


def test_images_are_scaled_as_in_wandb(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    floats = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 2, 3)
    figure = SimpleNamespace(
        savefig=lambda file, **options: PIL.Image.new("RGB", (3, 2)).save(file, **options)
    )
    given = {
        "unit": floats,
        "signed": floats * 2 - 1,
        "bytes": (floats * 255).astype(np.int64),
        "tensor": torch.from_numpy(floats).permute(2, 0, 1),
        "grey": torch.ones(2, 2, dtype=torch.uint8),
        "mask": np.eye(2, dtype=bool),
        "mask of torch": torch.eye(2).bool(),
        "figure": figure,
    }
    with wandb.init() as run:
        run.log({name: wandb.Image(each, caption="c") for name, each in given.items()}, step=4)
        run.log({"many": [wandb.Image(floats), wandb.Image(floats, mode="L")]}, step=5)
        run.log({"broken": wandb.Image("absent.png"), "a": 1, "text": "x"}, step=5)
    found = {name: content for name, _, _, content in artifacts(folder)}
    assert [*found] == [*given, "many/0", "many/1"]
    for name in ("unit", "signed", "bytes", "tensor", "many/0"):
        assert np.abs(shown(found[name]).astype(int) - floats * 255).max() <= 1, name
    assert shown(found["grey"]).tolist() == [[1, 1], [1, 1]]
    for name in ("mask", "mask of torch"):
        assert shown(found[name]).tolist() == [[255, 0], [0, 255]], name
    assert shown(found["figure"]).shape == (2, 3, 3)
    assert "log('broken') is left out" in caplog.text
    assert "log('text') is left out: a str is not a number" in caplog.text
    assert records(folder) == [(5, {"a": 1.0})]


@pytest.mark.parametrize(
    "value", [np.array([1.5]), np.full((1, 1), 1.5, np.float32), torch.tensor([[1.5]])]
)
def test_an_array_of_one_number_is_that_number(folder: Path, value: Any) -> None:
    with wandb.init() as run:
        run.log({"loss": value})
    own = Run(folder, ProcessPlace())
    own.log({"own": value}, step=1)
    own.close()
    assert records(folder) == [(0, {"loss": 1.5}), (1, {"own": 1.5})]


def test_histograms_are_folded(folder: Path) -> None:
    with wandb.init() as run:
        run.log({"h": wandb.Histogram(torch.arange(5.0), num_bins=2), "deep": {"er": 1}})
    (line,) = (folder / "artifacts" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(line)["histogram"]["counts"] == [2, 3]
    with pytest.raises(ValueError, match="np_histogram"):
        wandb.Histogram(np_histogram=([1], [0, 1]))


def test_saved_files_follow_their_policy(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "in"
    out.mkdir(parents=True)
    names = ("now", "live", "same", "end")
    for name in names:
        (out / name).write_text("first")
    with wandb.init() as run:
        base = str(tmp_path / "out")
        assert run.save(str(out / "n*"), base_path=base, policy="now") == [str(out / "now")]
        run.save(str(out / "live"), base_path=base)
        run.save(str(out / "same"), base_path=base)
        run.save(str(out / "end"), base_path=base, policy="end")
        run.log({"a": 1}, step=7)
        for name in ("now", "live", "end"):
            (out / name).write_text("second")
            os.utime(out / name, ns=(1, 1))
    assert [(name, content) for name, _, _, content in artifacts(folder)] == [
        ("in/now", b"first"),
        ("in/live", b"first"),
        ("in/same", b"first"),
        ("in/live", b"second"),
        ("in/end", b"second"),
    ]


def test_an_artifact_has_its_files_below_its_name(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("a")
    with wandb.init() as run:
        artifact = wandb.Artifact("my model", type="model", metadata={"x": 1})
        artifact.add_file(str(out / "a.txt"), name="b.txt")
        artifact.add_dir(str(out))
        assert run.log_artifact(artifact).wait() is artifact
        run.log_artifact(str(out / "a.txt"), name="data:v1", type="image")
    found = [(name, kind) for name, kind, _, _ in artifacts(folder)]
    assert found == [
        ("my model/b.txt", "model"),
        ("my model/a.txt", "model"),
        ("data:v1/a.txt", "file"),
    ]
    with pytest.raises(ValueError, match="a file is legal"):
        artifact.add_file("absent")


def test_what_cannot_be_stored_is_left_out(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(artifact_log, "MAX_FILES", 2)
    out, many = tmp_path / "out", tmp_path / "many"
    for path in (out / "gone", out / "small", *(many / name for name in "abc")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    with (out / "hole").open("wb") as file:
        file.truncate(256 * 1024 * 1024 + 1)
    artifact = wandb.Artifact("m", type="model")
    artifact.add_dir(str(many))
    for name in ("gone", "hole", "small"):
        artifact.add_file(str(out / name))
    (out / "gone").unlink()
    with caplog.at_level(logging.WARNING, logger="trainyard"), wandb.init() as run:
        for _ in range(2):
            assert run.save(str(out / "*"), base_path=str(tmp_path)) == [
                str(out / name) for name in ("hole", "small")
            ]
        run.log_artifact(artifact)
    assert [name for name, *_ in artifacts(folder)] == ["out/small", "out/small", "m/small"]
    messages = [record.getMessage() for record in caplog.records]
    expected = {
        "save('out/hole')": "268,435,456 at most",
        "log_artifact('m')": "more than 2 files",
        "log_artifact('m/gone')": "does not exist",
        "log_artifact('m/hole')": "268,435,456 at most",
    }
    assert len(messages) == len(expected)
    for message, (call, reason) in zip(messages, expected.items(), strict=True):
        assert message.startswith(f"wandb.{call} is left out: ")
        assert reason in message


def test_as_many_names_warn_as_in_the_session(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = wandb.init()
    for _ in range(2):
        run.log({f"text-{number}": "no number" for number in range(MAX_WARNINGS + 5)})
    assert len(caplog.records) == MAX_WARNINGS
    run.log({"": 1.0, "a,b": 2.0})  # names of metrics: the session has warnings of its own
    assert len(caplog.records) == MAX_WARNINGS + 2


def test_the_name_of_a_table_is_that_of_the_session(folder: Path) -> None:
    whole = "a" * 195 + ".json"
    names = (whole, "b" * 200, "c/.json", "d" * 198 + "/..e")
    run = wandb.init()
    run.log({name: wandb.Table(["x"], [[1]]) for name in names})
    wandb.finish()
    legal = [whole, "b" * 195 + ".json", "c/.json", "d" * 195 + ".json"]
    assert [name for name, *_ in artifacts(folder)] == legal
