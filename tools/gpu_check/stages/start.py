"""Basic checks: packages, the device, NCCL, torchrun, and the tests that need CUDA."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import torch
import torch.distributed as dist

from tools.gpu_check.check import Here
from tools.gpu_check.launch import Job
from tools.gpu_check.training import alone
from trainyard.prove.figures import Figure, at_least, at_most, equal, reported
from trainyard.training.known_devices import known_device

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    "trainer.loop.train",
    "trainer.parallel.pipeline",
    "trainer.parallel.cp",
    "trainer.hugging_face.export",
    "trainer.operations.__main__",
    "trainyard.planner.plan",
    "torchao.float8",
)
CUDA_TESTS = 7
"""Minimum number of tests that need CUDA."""
CUDA_MARK = re.compile(r"^@pytest\.mark\.cuda$", re.MULTILINE)
ELEMENTS = 1 << 20


def imports(here: Here) -> list[Figure]:
    """Import the packages for training, and check that torch can use the device."""
    for module in MODULES:
        importlib.import_module(module)
    ones = torch.ones(256, 256, device=here.device)
    figures = [
        reported("torch", torch.__version__),
        equal("product_of_ones", (ones @ ones).mean().item(), 256.0),
    ]
    if here.device == "cpu":
        return figures
    properties = torch.cuda.get_device_properties(0)
    major, minor = properties.major, properties.minor
    return [
        *figures,
        reported("device", properties.name),
        reported("known_to_specs", known_device(properties.name) is not None),
        reported("memory_gib", properties.total_memory / 2**30),
        reported("cuda", str(torch.version.cuda)),
        at_least("compute_capability", major + minor / 10, 8.0),
    ]


def nccl_collectives(here: Here) -> list[Figure]:
    """Run each collective of the trainer over NCCL, in a group of one rank."""
    with alone(here.device) as device:
        figures = [reported("nccl", ".".join(map(str, torch.cuda.nccl.version())))]
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            given = torch.arange(ELEMENTS, device=device).remainder(128).to(dtype)
            word = str(dtype).removeprefix("torch.")
            for name, taken in _of_one_rank(given).items():
                wrong = int((taken != given).sum())
                figures.append(at_most(f"{name}_{word}_wrong", wrong, 0))
    return figures


def _of_one_rank(given: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the result of each collective, which equals the input in a group of one rank."""
    names = ("all_gather", "reduce_scatter", "all_to_all")
    found = {name: torch.full_like(given, 99) for name in names}
    dist.all_gather_into_tensor(found["all_gather"], given)
    dist.reduce_scatter_tensor(found["reduce_scatter"], given)
    dist.all_to_all_single(found["all_to_all"], given)
    found["all_reduce"] = given.clone()
    dist.all_reduce(found["all_reduce"])
    return found


def one_rank_under_torchrun(here: Here) -> list[Figure]:
    """Train with the trainer's command line under torchrun, and check the records."""
    attempt = Job.small(here.scratch, here.device).run()
    provenance, outcome = attempt.document("provenance.json"), attempt.document("outcome.json")
    losses = attempt.values("train/loss")
    figures = [
        equal("outcome", outcome["outcome"], "succeeded"),
        at_least("checkpoints", len(attempt.committed()), 1),
        equal("lines", len(losses), 30),
        at_most("first_loss_off_ln_320", abs(losses[1] - math.log(320)), 0.2),
        at_most("last_loss_of_first", losses[30] / losses[1], 0.9),
        equal("gpu_in_provenance", bool(provenance["gpus"]), here.device == "cuda"),
    ]
    memory = "peak_reserved_gib" if here.device == "cuda" else "peak_rss_gib"
    return [*figures, at_least(memory, attempt.values(f"memory/{memory}")[30], 1e-3)]


def tests_that_need_cuda(here: Here) -> list[Figure]:
    """Run the tests that need a GPU with pytest; all must pass."""
    report = here.scratch / "report.xml"
    settings = here.scratch / "pytest.ini"
    # The project's own settings have options of plugins that are missing on this machine.
    settings.write_text(
        f"[pytest]\npythonpath = {ROOT}\nmarkers =\n    cuda: needs a GPU\n    slow: takes long\n",
        encoding="utf-8",
    )
    words = ["-c", str(settings), "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-rs"]
    words += ["--import-mode=importlib", "-m", "cuda", f"--junit-xml={report}"]
    files = files_with_cuda_tests(ROOT / "tests")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *map(str, files)], cwd=ROOT, check=False
    )
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    good = [case for case in cases if not len(case)]  # no failure, error or skip inside
    return [
        equal("exit_code", ended.returncode, 0),
        equal("passed", len(good), len(cases)),
        at_least("tests", len(cases), CUDA_TESTS),
    ]


def files_with_cuda_tests(folder: Path) -> list[Path]:
    """Return the test files that contain tests marked `cuda`."""
    return sorted(p for p in folder.rglob("test_*.py") if CUDA_MARK.search(p.read_text("utf-8")))
