"""Data: building the token cache, looking windows up, and the share of loading in a step.

Rates are per core, by processor time, which other load hardly changes. The text is generated, in
documents of some kilobytes.

    python -m benchmarks.data [--megabytes 64] [--lookups 2000000] [--steps 60]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import emit
from trainer.data.dataset import Dataset, open_dataset
from trainer.data.windows import TrainingOrder
from trainyard.run.directory import RunDirectory
from trainyard.spec.job import parse_job_spec

EXAMPLE = Path(__file__).parent.parent / "examples/debug.toml"
PACKAGES = ("numpy", "pyarrow", "xxhash")
CACHE_TARGET, LOOKUP_TARGET, SHARE_TARGET = 20.0, 1_000_000.0, 0.01
WINDOWS = 1_000_000_000
LOOKUPS_AT_ONCE = 4096


def texts(megabytes: int) -> Iterator[str]:
    """Yield documents of 100 to 8,000 letters and line breaks."""
    rng = np.random.default_rng(0)
    left = megabytes * 10**6
    while left > 0:
        size = int(rng.integers(100, 8000))
        letters = rng.integers(97, 123, size).astype(np.uint8)
        letters[::60] = 10
        left -= size
        yield letters.tobytes().decode()


def write_text(root: Path, megabytes: int) -> None:
    """Write one text file."""
    with (root / "input.txt").open("w") as file:
        file.writelines(texts(megabytes))


def write_jsonl(root: Path, megabytes: int) -> None:
    """Write JSON lines."""
    with (root / "input.jsonl").open("w") as file:
        for number, text in enumerate(texts(megabytes)):
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def write_parquet(root: Path, megabytes: int) -> None:
    """Write a Parquet file."""
    pq.write_table(pa.table({"text": list(texts(megabytes))}), root / "input.parquet")


INPUTS: dict[str, Callable[[Path, int], None]] = {
    "text": write_text,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def measure_cache(megabytes: int) -> bool:
    """Print the speed of one process building the cache of each kind of input."""
    passed = True
    for source, write in INPUTS.items():
        with tempfile.TemporaryDirectory() as name:
            root, cache = Path(name) / "data", Path(name) / "cache"
            root.mkdir()
            write(root, megabytes)
            started, worked = time.perf_counter(), time.process_time()
            dataset = _open(source, root, cache, processes=1)
            wall, processor = time.perf_counter() - started, time.process_time() - worked
            shutil.rmtree(cache)
            started = time.perf_counter()
            _open(source, root, cache, processes=2)
            two = time.perf_counter() - started
        passed &= emit(
            f"token_cache_{source}",
            figure=megabytes / processor,
            unit="MB of text a second of processor time",
            target=CACHE_TARGET,
            at_least=True,
            packages=PACKAGES,
            megabytes=megabytes,
            by_wall_clock=round(megabytes / wall, 1),
            two_processes_by_wall_clock=round(megabytes / two, 1),
            windows=dataset.n_sequences,
        )
    return passed


def _open(source: str, root: Path, cache: Path, *, processes: int) -> Dataset:
    spec = parse_job_spec({"data": {"source": source, "path": "data:."}})
    return open_dataset(
        spec,
        roots={"data": str(root)},
        cache_dir=cache,
        on_progress=lambda: None,
        processes=processes,
    )


def measure_lookups(lookups: int) -> bool:
    """Print the speed of mapping positions of a large input to windows, with and without split."""
    passed = True
    for fraction in (0.0, 0.01):
        order = TrainingOrder(WINDOWS, seed=0, fraction=fraction)
        batches = np.arange(lookups).reshape(-1, LOOKUPS_AT_ONCE)
        started = time.process_time()
        for positions in batches:
            order(positions)
        processor = time.process_time() - started
        passed &= emit(
            "index_lookup" if not fraction else "index_lookup_with_validation_split",
            figure=batches.size / processor,
            unit="sequences a second of processor time",
            target=LOOKUP_TARGET,
            at_least=True,
            packages=PACKAGES,
            windows=WINDOWS,
            at_once=LOOKUPS_AT_ONCE,
        )
    return passed


def measure_share(steps: int) -> bool:
    """Print the share of the example's step spent waiting for data, on one rank."""
    # Not in the processes that build caches, which import this module too.
    import torch

    from trainer.loop.train import train
    from trainer.metrics.run_writer import RunWriter
    from trainer.run import open_run

    torch.set_num_threads(1)
    spec: dict[str, Any] = tomllib.loads(EXAMPLE.read_text())
    spec["training"] |= {"steps": steps, "log_every_steps": steps}
    spec["checkpoint"] = {"interval_steps": 0, "preflight": False}
    spec["resources"] = {"world_size": 1, "device": "cpu"}
    ended: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec.json").write_text(json.dumps(spec))
        run = open_run(folder, world_size=1, roots={})
        recorder = RunWriter(RunDirectory(folder), rank=0, local_rank=0)
        train(run, recorder, after_step=lambda _: ended.append(time.perf_counter()))
        lines = RunDirectory(folder).metrics.read_text().splitlines()
    values = json.loads(lines[-1])["values"]
    step_seconds = (ended[-1] - ended[0]) / (len(ended) - 1)
    return emit(
        "data_loading_share",
        figure=values["perf/data_seconds"] / step_seconds,
        unit="share of the example's step",
        target=SHARE_TARGET,
        at_least=False,
        packages=("numpy", "torch"),
        data_seconds=values["perf/data_seconds"],
        step_seconds=round(step_seconds, 4),
        steps=steps,
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--lookups", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    lookups = max(1, given.lookups // LOOKUPS_AT_ONCE) * LOOKUPS_AT_ONCE
    reached = [
        measure_cache(given.megabytes),
        measure_lookups(lookups),
        measure_share(max(2, given.steps)),
    ]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
