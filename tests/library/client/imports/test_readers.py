"""Runs recorded by the real tools: complete, truncated anywhere, and damaged anywhere."""

from __future__ import annotations

import math
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.library.client.imports import read_runs
from tests.library.client.imports.read_runs import points
from trainyard.client.errors import UsageError
from trainyard.client.past_runs.past_run import (
    PastRun,
    arguments_of,
    digest_of,
    job_name,
    legal_names,
    ordered,
    times_of,
)
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.run.fact_types.fact_section import legal_tags
from trainyard.run.metric_names import legal_name

RECORDED = Path(__file__).parent / "recorded"
LOSS = [1.0, 0.5, 1 / 3, math.nan, 0.2]


def runs(tool: ImportTool, path: Path | None = None) -> dict[str, PastRun]:
    """Return the runs of a tool by their names."""
    return {run.name: run for run in read_runs.runs(tool, path or RECORDED / tool)}


def same(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected, nan_ok=True)


def test_offline_runs_of_wandb() -> None:
    found = runs("wandb")
    assert {*found} == {"calm-river", "rough sea"}
    calm, rough = found["calm-river"], found["rough sea"]
    assert (calm.state, calm.reason) == ("succeeded", "")
    assert (rough.state, rough.reason) == ("failed", "exit code 1")
    assert same(calm.series["train/loss"].values.tolist(), LOSS)
    assert calm.series["train/loss"].steps.tolist() == [0, 1, 2, 3, 4]
    assert points(calm, "late.inner") == [(10, 3.0)]
    assert points(calm, "big") == [(10, math.inf)]
    assert "note" not in calm.series
    assert calm.summary["best"] == 0.2
    assert arguments_of(calm) == {
        "lr": 0.01,
        "layers": (1, 2),
        "model.kind": "mlp",
        "model.bias": True,
    }
    assert (calm.description, calm.tags) == ("a recorded run", ("small", "two words"))
    assert calm.command[-1] == "recorded"
    assert calm.started is not None
    assert calm.ended is not None
    assert 0 < calm.ended - calm.started < 60
    assert calm.notes == []


def test_a_database_and_folders_of_mlflow() -> None:
    found = runs("mlflow")
    assert {*found} == {"calm-river", "rough-sea", "deep-lake"}
    calm, lake = found["calm-river"], found["deep-lake"]
    assert calm.state == lake.state == "succeeded"
    assert same(calm.series["train/loss"].values.tolist(), LOSS)
    assert points(calm, "without step") == [(step, float(step)) for step in range(5)]
    assert points(calm, "infinite") == [(1, math.inf)]
    assert arguments_of(calm) == {"lr": 0.01, "model.kind": "mlp"}
    assert calm.tags == ("experiment:rivers", "team:hydrology")
    assert "numbered by time" in calm.notes[0]
    assert points(lake, "train/loss") == [(step, 2 / (step + 1)) for step in range(5)]
    assert (lake.config, lake.tags) == ({"lr": 0.02}, ("experiment:lakes",))
    start, seconds = times_of(lake)
    assert start > 1.7e9
    assert 0 < seconds < 60


def test_event_files_of_tensorboard_are_a_run_for_each_folder() -> None:
    found = runs("tensorboard")
    assert {*found} == {"tensorboard", "eval"}
    for run in found.values():
        assert {*run.series} == {"loss", "accuracy 1"}
        assert same(run.series["loss"].values.tolist(), LOSS)
        assert points(run, "accuracy 1") == [(step, float(step)) for step in range(5)]
        assert run.series["loss"].times.tolist() == [1.7e9 + step for step in range(5)]


def file_of(tool: ImportTool) -> Path:
    pattern = {"wandb": "run-*.wandb", "tensorboard": "*tfevents*", "mlflow": "*.db"}[tool]
    return min((RECORDED / tool).glob(pattern))


@pytest.mark.parametrize("tool", ["wandb", "tensorboard"])
def test_a_file_that_is_cut_off_is_read_up_to_there(tool: ImportTool, tmp_path: Path) -> None:
    whole = file_of(tool).read_bytes()
    path = tmp_path / file_of(tool).name
    most = 0
    for size in range(7, len(whole), 13):
        path.write_bytes(whole[:size])
        (run,) = runs(tool, path).values()
        assert run.points >= most
        most = run.points
    assert most >= 8


@pytest.mark.parametrize("tool", ["wandb", "tensorboard"])
def test_a_damaged_file_yields_what_is_whole(tool: ImportTool, tmp_path: Path) -> None:
    whole = file_of(tool).read_bytes()
    path = tmp_path / file_of(tool).name
    dice = random.Random(7)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[dice.randrange(7, len(whole))] = dice.randrange(256)
        path.write_bytes(damaged)
        (run,) = runs(tool, path).values()
        assert run.points <= 12
        for columns in run.series.values():
            assert all(v <= 40 or not math.isfinite(v) for v in columns.values)


def test_a_damaged_store_is_refused_or_read(tmp_path: Path) -> None:
    whole = file_of("mlflow").read_bytes()
    path = tmp_path / "mlflow.db"
    dice = random.Random(7)
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(200):
            damaged[dice.randrange(len(whole))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            found = len(runs("mlflow", path))
        except UsageError:  # nothing else is raised
            found = 0
        assert found <= 2


def test_a_store_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(file_of("mlflow"), path)
    path.chmod(0o400)
    before = path.read_bytes()
    assert len(runs("mlflow", path)) == 2
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("tool", ["wandb", "mlflow", "tensorboard"])
def test_a_path_without_runs_is_refused(tool: ImportTool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        runs(tool, tmp_path / "none")
    with pytest.raises(UsageError, match="has no run"):
        runs(tool, tmp_path)
    other = tmp_path / "file"
    other.write_bytes(b"something else, of no tool")
    if tool != "tensorboard":
        with pytest.raises(UsageError, match="cannot be imported"):
            runs(tool, other)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE runs (run_uuid TEXT)")
    store.close()
    with pytest.raises(UsageError, match=r"not a (readable )?store of MLflow"):
        runs("mlflow", path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run-a.wandb").symlink_to(file_of("wandb"))
    (tmp_path / "events.out.tfevents.1").symlink_to(file_of("tensorboard"))
    for tool in ("wandb", "tensorboard"):
        with pytest.raises(UsageError, match="has no run"):
            runs(tool, tmp_path)


def test_names_become_legal_and_stay_apart() -> None:
    names = legal_names(["a,b", "a_b", "ä", ",", "x" * 300, "x" * 268, "ok/1.2-3", "a b"])
    assert names["a_b"] == "a_b"
    assert names["a,b"] == legal_name("a,b")
    assert all(names[name] == name for name in ("ok/1.2-3", "ä", "a b"))
    assert names[","] == legal_name(",")
    assert len({*names.values()}) == 8
    assert max(map(len, names.values())) == 268
    assert job_name("Meine Läufe / 3") == "Meine-L-ufe-3"
    assert job_name("!") == "run"
    assert legal_tags(("two words", "ä", "two words")) == ("two-words",)


def test_of_points_with_one_step_the_newest_stays() -> None:
    run = PastRun("tensorboard", "a", "a")
    for step, time, value in ((1, 1.0, 1.0), (2, 2.0, 2.0), (3, 3.0, 3.0), (2, 4.0, 20.0)):
        run.add("loss", step, time=time, value=value)
    ordered(run)
    assert points(run, "loss") == [(1, 1.0), (2, 20.0), (3, 3.0)]
    assert run.points == 3
    assert "logged again" in run.notes[0]


def test_what_no_server_stores_is_left_out_and_noted() -> None:
    run = PastRun("mlflow", "a", "a")
    run.add("loss", -1, time=1.0, value=1.0)
    run.add("loss", 10**10, time=1.0, value=1.0)
    run.add("loss", 1, time=math.nan, value=1.0)
    assert (run.points, len(run.notes)) == (0, 1)
    run.config = {"deep": {"a": None, "b": [1, [2]]}, "huge": 10**30, "nan": math.nan, "1x": "\0"}
    assert arguments_of(run) == {
        "deep.b": "[1, [2]]",
        "huge": str(10**30),
        "nan": "nan",
        "_1x": "�",
    }
    run.config = {f"n{index}": index for index in range(300)}
    assert len(arguments_of(run)) == 256


def test_the_digest_is_that_of_the_content() -> None:
    first, again = runs("wandb"), runs("wandb")
    assert {digest_of(run) for run in first.values()} == {digest_of(run) for run in again.values()}
    one = first["calm-river"]
    before = digest_of(one)
    one.add("train/loss", 11, time=1.0, value=1.0)
    assert digest_of(one) != before


def test_a_digest_takes_keys_of_any_type_and_half_characters() -> None:
    """A configuration that comes from no file may have both."""
    run = PastRun("wandb", "id\ud800", "name")
    run.config = {1: "\ud800", "b": [{2: 0, "c": (1,)}], "\ud800": None}  # type: ignore[dict-item]
    same_run = PastRun("wandb", "id\ud800", "name")
    same_run.config = {"\ud800": None, "b": [{"c": [1], "2": 0}], "1": "\ud800"}
    assert digest_of(run) == digest_of(same_run)
