"""The run of a job's attempt of one process, for adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace


def job_run(folder: Path, attempt: int = 1, resume_step: int | None = None) -> Run:
    """Return the run of an attempt with its checkpoints in `<folder>/checkpoints`."""
    run, root = folder / f"run-{attempt}", folder / "checkpoints"
    run.mkdir(parents=True)
    root.mkdir(exist_ok=True)
    launch: dict[str, Any] = {
        "job_id": "job",
        "attempt": attempt,
        "roots": {"checkpoints": str(root)},
    }
    if resume_step is not None:
        path = f"job/a{attempt - 1}/step-{resume_step}"
        parent = f"job.a{attempt - 1}.step-{resume_step}"
        launch["resume"] = {"checkpoint_id": parent, "path": path}
    (run / "attempt.json").write_text(json.dumps(launch))
    (run / "spec.json").write_text(json.dumps({"name": "mine", "program": {"arguments": {}}}))
    return Run(run, ProcessPlace())


def stop(run: Run) -> None:
    """Order the attempt to stop, like its supervisor."""
    assert run.directory is not None
    (run.directory / "stop").touch()


def records_of(run: Run) -> list[dict[str, Any]]:
    """Close the run and return its records of metrics."""
    run.close()
    assert run.directory is not None
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses_of(run: Run) -> dict[int, float]:
    """Close the run and return `train/loss` by step."""
    found = (r for r in records_of(run) if "train/loss" in r["values"])
    return {r["step"]: r["values"]["train/loss"] for r in found}
