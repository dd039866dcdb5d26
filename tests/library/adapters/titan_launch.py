"""Attempts of jobs on torchtitan's own trainer, started in one process of its interpreter."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.examples.test_programs import PROGRAMS, ROOT, TITAN
from trainyard.data import merge_digests

DRIVER = Path(__file__).parent / "titan_ranks.py"


@dataclass(frozen=True)
class TitanAttempt:
    """What an attempt left."""

    codes: list[int]
    """Exit codes by rank."""
    log: str
    """Output of all ranks."""
    values: dict[str, dict[int, float]]
    """Values of rank 0 by name and step."""
    digests: dict[int, str]
    """Digest of each step that all ranks reported."""


@dataclass
class TitanLaunch:
    """Starts attempts, each with its run directory below `folder`."""

    folder: Path
    """Folder with the data sets and the tokenizer; the working directory of all ranks."""
    driver: subprocess.Popen[str]
    _numbers: dict[str, int] = field(default_factory=dict)

    def job(
        self,
        recipe: str,
        *options: str,
        ranks: int,
        name: str = "job",
        parent: int | None = None,
        stops: bool = False,
        end: dict[str, int] | None = None,
    ) -> TitanAttempt:
        """Run the next attempt of a job.

        Args:
            recipe: function of `titan_recipes`.
            options: options of torchtitan.
            ranks: number of ranks.
            name: id of the job.
            parent: step of the previous attempt's checkpoint to resume from.
            stops: whether the attempt has the order to stop from its beginning.
            end: rank, step and signal of a rank that ends before it saves the step.
        """
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        run = self.folder / "runs" / f"{name}-{number}"
        (run / "metrics").mkdir(parents=True)
        root = self.folder / "storage"
        root.mkdir(exist_ok=True)
        launch: dict[str, Any] = {
            "job_id": name,
            "attempt": number,
            "roots": {"checkpoints": str(root)},
        }
        if parent is not None:
            before = f"a{number - 1}"
            launch["resume"] = {
                "checkpoint_id": f"{name}.{before}.step-{parent}",
                "path": f"{name}/{before}/step-{parent}",
            }
        (run / "attempt.json").write_text(json.dumps(launch))
        (run / "spec.json").write_text(json.dumps({"name": name, "program": {}}))
        if stops:
            (run / "stop").touch()
        codes, log = self.ranks(
            recipe, *options, ranks=ranks, variables={"TRAINYARD_RUN": str(run)}, end=end
        )
        return TitanAttempt(codes, log, *_recorded(run, ranks))

    def ranks(
        self,
        recipe: str,
        *options: str,
        ranks: int,
        folder: Path | None = None,
        variables: dict[str, str] | None = None,
        end: dict[str, int] | None = None,
    ) -> tuple[list[int], str]:
        """Run ranks outside of a job unless variables name one; return exit codes and output."""
        place = folder or self.folder
        for log in place.glob("rank-*.log"):
            log.unlink()
        codes = self._answer(
            {
                "ranks": ranks,
                "recipe": recipe,
                "options": options,
                "folder": str(place.resolve()),
                "variables": variables or {},
                "end": end,
            }
        )
        # A rank that ends early may have no log, because the failure of another rank ended it.
        logs = sorted(place.glob("rank-*.log"))
        return codes, "\n".join(log.read_text() for log in logs)

    def layouts(self, recipe: str, *options: str) -> tuple[int, str]:
        """Return the exit code and the output of the adapter's command."""
        code, text = self._answer({"words": ["layouts", "--config", recipe, *options]})
        return code, text

    def _answer(self, order: dict[str, Any]) -> Any:
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        self.driver.stdin.write(f"{json.dumps(order)}\n")
        self.driver.stdin.flush()
        return json.loads(self.driver.stdout.readline())


@contextmanager
def titan_launch(folder: Path) -> Iterator[TitanLaunch]:
    """Start the interpreter, with data sets of short documents in a folder."""
    assert TITAN is not None
    # It writes next to itself.
    prepare = shutil.copy(PROGRAMS / "torchtitan" / "prepare.py", folder)
    subprocess.run([TITAN, str(prepare)], check=True)
    write_texts(folder / "tests" / "assets" / "c4_test", documents=60, seed=1)
    write_texts(folder / "other", documents=30, seed=2)
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    variables.pop("TRAINYARD_RUN", None)
    with subprocess.Popen(
        [TITAN, str(DRIVER)],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        yield TitanLaunch(folder, driver)
        assert driver.stdin is not None
        driver.stdin.close()


def write_texts(folder: Path, *, documents: int, seed: int) -> None:
    """Write documents of 10 to 60 characters, which sequences of 32 tokens pack."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = random.Random(seed)
    texts = ("".join(draws.choices("abcdefgh ", k=draws.randrange(10, 60))) for _ in range(1000))
    lines = [json.dumps({"text": text}) for text, _ in zip(texts, range(documents), strict=False)]
    (folder / "data.json").write_text("\n".join(lines))


def _recorded(run: Path, ranks: int) -> tuple[dict[str, dict[int, float]], dict[int, str]]:
    """Return the values of rank 0 and the digests of complete steps."""
    values: dict[str, dict[int, float]] = {}
    digests: dict[int, list[str]] = {}
    for path in [*run.glob("metrics.jsonl"), *(run / "metrics").iterdir()]:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if path.name == "metrics.jsonl":
                for name, value in record["values"].items():
                    values.setdefault(name, {})[record["step"]] = value
            if record.get("data_digest"):
                digests.setdefault(record["step"], []).append(record["data_digest"])
    complete = {step: found for step, found in digests.items() if len(found) == ranks}
    return values, {step: merge_digests(found) for step, found in complete.items()}
