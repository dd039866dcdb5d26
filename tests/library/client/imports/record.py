"""Records the runs in `recorded/` with the real tools, which no test needs.

    python3 -m venv venv && venv/bin/pip install wandb==0.31.0 mlflow-skinny==3.17.2 sqlalchemy \
        alembic tensorboard==2.21.0
    venv/bin/python tests/library/client/imports/record.py tests/library/client/imports/recorded
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

STEPS = 5


def main() -> None:
    """Record one run of each kind again."""
    folder = Path(sys.argv[1]).resolve()
    for record in (record_wandb, record_mlflow, record_tensorboard):
        kind = folder / record.__name__.removeprefix("record_")
        shutil.rmtree(kind, ignore_errors=True)
        kind.mkdir(parents=True)
        record(kind)


def record_wandb(folder: Path) -> None:
    """Record an offline run that succeeds, and one that fails."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    os.environ |= {"WANDB__DISABLE_STATS": "true", "WANDB_DISABLE_GIT": "true"}
    wandb: Any = import_module("wandb")
    with tempfile.TemporaryDirectory() as work:
        for name, exit_code in (("calm-river", 0), ("rough sea", 1)):
            run = wandb.init(
                project="rivers",
                name=name,
                notes="a recorded run",
                tags=["small", "two words"],
                dir=work,
                config={"lr": 0.01, "layers": [1, 2], "model": {"kind": "mlp", "bias": True}},
            )
            for step in range(STEPS):
                loss = math.nan if step == 3 else 1.0 / (step + 1)
                run.log({"train/loss": loss, "val acc (%)": 10.0 * step, "note": "text"})
            run.log({"late": {"inner": 3}, "big": math.inf}, step=10)
            run.summary["best"] = 0.2
            run.finish(exit_code=exit_code)
        for path in sorted(Path(work).rglob("*.wandb")):
            shutil.copy(path, folder / path.name)


def record_mlflow(folder: Path) -> None:
    """Record two runs into an SQLite store, and one into a file store."""
    mlflow: Any = import_module("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("rivers")
    for name in ("calm-river", "rough-sea"):
        with mlflow.start_run(run_name=name, tags={"team": "hydrology"}):
            mlflow.log_params({"lr": 0.01, "model.kind": "mlp"})
            for step in range(STEPS):
                loss = math.nan if step == 3 else 1.0 / (step + 1)
                mlflow.log_metric("train/loss", loss, step=step)
                mlflow.log_metric("without step", float(step))
            mlflow.log_metric("infinite", math.inf, step=1)
    _shrink(folder / "mlflow.db")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow.set_tracking_uri((folder / "mlruns").as_uri())
    mlflow.set_experiment("lakes")
    with mlflow.start_run(run_name="deep-lake"):
        mlflow.log_params({"lr": 0.02})
        for step in range(STEPS):
            mlflow.log_metric("train/loss", 2.0 / (step + 1), step=step)


def _shrink(store: Path) -> None:
    """Keep the tables of runs: a new store has 40 others, and takes a megabyte."""
    kept = {"experiments", "runs", "params", "metrics", "latest_metrics", "tags"}
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in found:
            if name not in kept and not name.startswith("sqlite_"):
                connection.execute(f"DROP TABLE {name}")
    connection.execute("VACUUM")
    connection.close()


def record_tensorboard(folder: Path) -> None:
    """Record event files of tensorboard itself, in two folders."""
    writers: Any = import_module("tensorboard.summary.writer.event_file_writer")
    proto: Any = import_module("tensorboard.compat.proto.event_pb2")
    summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
    tensors: Any = import_module("tensorboard.util.tensor_util")
    for name in ("", "eval"):
        writer = writers.EventFileWriter(str(folder / name))
        for step in range(STEPS):
            loss = math.nan if step == 3 else 1.0 / (step + 1)
            tensor = tensors.make_tensor_proto(float(step))
            values = [
                summaries.Summary.Value(tag="loss", simple_value=loss),
                summaries.Summary.Value(tag="accuracy 1", tensor=tensor),
                summaries.Summary.Value(tag="text", tensor=tensors.make_tensor_proto("words")),
            ]
            summary = summaries.Summary(value=values)
            time = 1_700_000_000.0 + step
            writer.add_event(proto.Event(wall_time=time, step=step, summary=summary))
        writer.close()


if __name__ == "__main__":
    main()
