"""`trainyard import` against the real API: runs of each tool, a repeat, an interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.telemetry.metrics.charts import chart
from tests.event_files import event
from tests.library.conftest import Run, Yard
from trainyard.client.past_runs.import_request import ImportOptions
from trainyard.client.past_runs.past_run import PastRun
from trainyard.client.past_runs.runs import import_run
from trainyard.client.sdk import Client
from trainyard.protocol.past_runs.views import MAX_BATCH_POINTS, ImportedPoints, ImportView
from trainyard.run.metric_names import legal_name

RECORDED = Path(__file__).parents[2] / "client/imports/recorded"


@pytest.mark.parametrize(("tool", "number"), [("wandb", 2), ("mlflow", 3), ("tensorboard", 2)])
def test_each_run_becomes_a_job_once(yard: Yard, run: Run, tool: str, number: int) -> None:
    words = ("import", tool, str(RECORDED / tool), "--tag", "past")
    first = run(*words)
    assert first.exit_code == 0, first.stderr
    assert first.stdout.count("series") == number
    again = run(*words, "--json")
    views = json.loads(again.stdout)
    assert len({view["job_id"] for view in views}) == number
    assert all(view["received"] == view["run"]["points"] for view in views)
    listed = json.loads(run("ps", "--tag", "past", "--json").stdout)
    assert {job["id"] for job in listed} == {view["job_id"] for view in views}
    assert {job["imported_from"] for job in listed} == {tool}
    assert "imported" in run("ps", "--imported").stdout
    assert "No job matches" in run("ps", "--own").stdout
    shown = run("show", views[0]["job_id"])
    assert f"imported from {tool}" in shown.stdout
    assert f" of {tool}, " in shown.stdout
    assert "runs as" not in shown.stdout
    assert "Attempts" not in shown.stdout


def test_a_name_that_is_not_legal_is_reported(yard: Yard, run: Run, tmp_path: Path) -> None:
    told = run("import", "tensorboard", str(RECORDED / "tensorboard"), "--name", "old")
    assert "becomes" not in told.stderr, "a space is legal"
    assert told.stdout.count("old") == 0  # the line names the run, not the job
    (first, second) = json.loads(run("ps", "--json").stdout)
    assert first["name"] == second["name"] == "old"
    (tmp_path / "events.out.tfevents.1").write_bytes(event(1, **{"top 1, top 5": 0.5}))
    told = run("import", "tensorboard", str(tmp_path))
    assert f"'top 1, top 5' becomes {legal_name('top 1, top 5')}" in told.stderr


def test_what_cannot_be_imported_is_explained(yard: Yard, run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = run("import", "mlflow", str(empty))
    assert refused.exit_code == 2
    assert "has no run of mlflow" in refused.stderr
    assert "mlruns" in refused.stderr
    assert run("import", "comet", str(tmp_path)).exit_code == 2
    wrong = run("import", "wandb", str(RECORDED / "wandb"), "--project", "none")
    assert (wrong.exit_code, "no project" in wrong.stderr) == (2, True)


def past_run(points: int) -> PastRun:
    made = PastRun("wandb", "long", "long")
    for step in range(points):
        made.add("loss", step, time=1.7e9 + step, value=float(step))
        made.add("lr", step, time=1.7e9 + step, value=0.1)
    return made


def test_an_import_that_was_interrupted_continues(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = MAX_BATCH_POINTS + 1_700
    send, calls = Client.add_points, []

    def fails_later(client: Client, job_id: str, batch: ImportedPoints) -> ImportView:
        calls.append(batch.start)
        if len(calls) == 2:
            raise ConnectionError
        return send(client, job_id, batch)

    monkeypatch.setattr(Client, "add_points", fails_later)
    with Client() as client:
        with pytest.raises(ConnectionError):
            import_run(client, past_run(number), ImportOptions())
        result = import_run(client, past_run(number), ImportOptions())
    assert calls == [MAX_BATCH_POINTS * batch for batch in (0, 1, 1, 2, 3)]
    assert (result.view.received, result.sent) == (2 * number, 2 * number - MAX_BATCH_POINTS)
    context, job_id = yard.harness.context, result.view.job_id
    assert "incomplete" not in (job_view(context, job_id, scope=SYSTEM_SCOPE).reason or "")
    for curve in chart(context, job_id, ["loss", "lr"], max_points=100, scope=SYSTEM_SCOPE).curves:
        assert (sum(curve.count), curve.steps[-1]) == (number, number - 1)


def wide_folder(folder: Path, *, series: int) -> Path:
    """Return a folder of a run with one point of each of many series."""
    folder.mkdir()
    points = {f"norm/layer,{number}": float(number) for number in range(series)}
    (folder / "events.out.tfevents.1").write_bytes(event(1, **points))
    return folder


def test_a_run_of_2000_series_is_imported_in_parts(yard: Yard, run: Run, tmp_path: Path) -> None:
    wide_folder(tmp_path / "a-wide", series=2000)
    wide_folder(tmp_path / "b-late", series=3)
    told = run("import", "tensorboard", str(tmp_path), "--json")
    assert told.exit_code == 0, told.stderr
    wide, late = json.loads(told.stdout)
    assert (wide["received"], late["received"]) == (2000, 3)
    assert len(wide["run"]["renamed"]) == 2000
    names = [legal_name(f"norm/layer,{number}") for number in (0, 1999)]
    curves = chart(
        yard.harness.context, wide["job_id"], names, max_points=10, scope=SYSTEM_SCOPE
    ).curves
    assert [curve.last for curve in curves] == [[0.0], [1999.0]]
    assert job_view(yard.harness.context, wide["job_id"], scope=SYSTEM_SCOPE).state == "succeeded"


def test_the_widest_run_fits_into_requests(yard: Yard) -> None:
    made = PastRun("wandb", "wide", "wide", state="succeeded")
    for number in range(2000):
        name = f"{number}," + "路" * 900
        made.add(name, 1, time=1.7e9, value=1.0)
        made.summary[name] = 1.0
        made.config[f"list-{number}"] = ["词" * 4000, *range(200)]
    made.command = ("词" * 4000,) * 256
    with Client() as client:
        result = import_run(client, made, ImportOptions())
    assert result.view.received == 2000
    notes = " ".join(made.notes)
    for what in ("summary", "original names", "configuration", "command"):
        assert what in notes
    assert (
        job_view(yard.harness.context, result.view.job_id, scope=SYSTEM_SCOPE).state == "succeeded"
    )


def test_a_run_that_is_refused_keeps_no_other_from_being_imported(
    yard: Yard, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        wide_folder(tmp_path / name, series=3)
    send, refused = Client.add_points, ["b"]

    def refuses(client: Client, job_id: str, batch: ImportedPoints) -> ImportView:
        if job_view(yard.harness.context, job_id, scope=SYSTEM_SCOPE).name in refused:
            batch = batch.model_copy(update={"start": 1})  # a gap
        return send(client, job_id, batch)

    monkeypatch.setattr(Client, "add_points", refuses)
    told = run("import", "tensorboard", str(tmp_path))
    assert told.exit_code == 1
    assert "Error: b is not imported" in told.stderr
    assert "1 of 3 runs are not imported: b." in told.stderr
    jobs = {job["name"]: job for job in json.loads(run("ps", "--json").stdout)}
    assert {name: job["state"] for name, job in jobs.items()} == {
        "a": "succeeded",
        "b": "stopped",
        "c": "succeeded",
    }
    assert "0 of 3 points" in jobs["b"]["reason"]
    refused.clear()
    assert run("import", "tensorboard", str(tmp_path)).exit_code == 0
    again = job_view(yard.harness.context, jobs["b"]["id"], scope=SYSTEM_SCOPE)
    assert (again.state, again.reason) == (
        "succeeded",
        "imported from tensorboard: event files record no end",
    )


def test_a_file_that_is_damaged_keeps_no_other_from_being_imported(
    yard: Yard, run: Run, tmp_path: Path
) -> None:
    for path in (RECORDED / "wandb").iterdir():
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "run-00000000.wandb").write_bytes(b"no log of wandb")
    told = run("import", "wandb", str(tmp_path))
    assert told.exit_code == 1
    assert told.stdout.count("series") == 2
    assert "run-00000000.wandb is not imported: it does not start" in told.stderr
    assert "1 of 3 runs are not imported" in told.stderr
