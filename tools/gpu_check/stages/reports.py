"""Checks of reports: an out-of-memory error, a memory snapshot, and a profile of some steps."""

from __future__ import annotations

import gzip
import json
import pickletools
from collections import Counter
from pathlib import Path

import torch

from tools.gpu_check.check import Here
from tools.gpu_check.launch import Attempt, Job
from trainer.errors import OutOfMemoryError
from trainyard.prove.figures import Figure, at_least, at_most, equal, reported
from trainyard.run.control_files import post_request
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Request, RequestAnswer, RequestKind

STEPS = 12
RECORDED = 3
REQUEST = "1"
BLOCK = {"cuda": 1 << 30, "cpu": 1 << 55}
"""Bytes per allocation until memory runs out; on a CPU the first allocation fails."""
FRACTION = 0.1
"""Share of the GPU's memory that the process may use."""


def out_of_memory_is_explained(here: Here) -> list[Figure]:
    """Use up the memory after a step; check the parts in the error, and the snapshot on CUDA."""
    attempt = _small(here).prepare()
    if here.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(FRACTION, 0)
    blocks: list[torch.Tensor] = []

    def fill(step: int) -> None:
        while step == 2:
            blocks.append(torch.empty(BLOCK[here.device], dtype=torch.int8, device=here.device))

    try:
        attempt.train_here(fill)
    except OutOfMemoryError as error:
        found = error
    use = found.memory
    assert use is not None
    held = use.weights_bytes + use.optimizer_bytes + use.gradients_bytes
    figures = [
        equal("reason", found.reason.value, "out_of_memory"),
        # Two moments of each weight, in the same type, and a counter of four bytes per tensor.
        at_most("moments_of_weights_off_2", abs(use.optimizer_bytes / use.weights_bytes - 2), 0.01),
        at_least("weights_bytes", use.weights_bytes, 100_000),
        at_most("parts_of_allocated", held / use.allocated_bytes, 1.0),
        equal("says_what_is_largest", "Largest: the rest" in (found.remedy or ""), expected=True),
    ]
    if here.device == "cuda":
        figures += _explained_on_cuda(found, blocks)
    return figures


def _explained_on_cuda(error: OutOfMemoryError, blocks: list[torch.Tensor]) -> list[Figure]:
    assert error.memory is not None
    rest = sum(block.nbytes for block in blocks)
    dictionaries, words = _snapshot(Path(str(error.path)))
    return [
        at_most("rest_off_what_was_taken", abs(error.memory.rest_bytes / rest - 1), 0.1),
        equal("snapshot_has_segments", "segments" in words, expected=True),
        at_least("entries_in_snapshot", dictionaries, len(blocks)),
    ]


def memory_snapshot_on_request(here: Here) -> list[Figure]:
    """Request a memory snapshot from a running attempt; check that it has allocations of steps."""
    attempt, answer = _asked(here, "memory_snapshot")
    files = sorted(attempt.run.glob("snapshots/*.pickle"))
    assert files, answer.message
    dictionaries, words = _snapshot(files[0])
    return [
        equal("answered", answer.ok, expected=True),
        equal("files", len(files), 1),
        # Words of the history for an allocation and its end.
        equal("has_history", words >= {"alloc", "free_completed"}, expected=True),
        at_least("entries", dictionaries, 100),
    ]


def profile_on_request(here: Here) -> list[Figure]:
    """Request a profile from a running attempt; check that it has steps, on CUDA with kernels."""
    attempt, answer = _asked(here, "profile")
    files = sorted(attempt.run.glob("profiles/*.json.gz"))
    assert files, answer.message
    events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    kinds = Counter(str(event.get("cat")) for event in events)
    updates = sum("_fused_adamw_" in str(event.get("name")) for event in events)
    kernels = kinds["kernel"] if here.device == "cuda" else kinds["cpu_op"]
    return [
        equal("answered", answer.ok, expected=True),
        equal("files", len(files), 1),
        # Two groups of parameters, in each of the recorded steps.
        at_least("updates_seen", updates, 2 * RECORDED),
        at_least("kernels_seen" if here.device == "cuda" else "operators_seen", kernels, 100),
        reported("mib", files[0].stat().st_size / 2**20),
    ]


def _asked(here: Here, kind: RequestKind) -> tuple[Attempt, RequestAnswer]:
    """Train with a request after the third step; return the attempt and the answer."""
    attempt = _small(here).prepare()

    def request(step: int) -> None:
        if step == 3:
            run = RunDirectory(attempt.run)
            post_request(run, REQUEST, Request(kind=kind, steps=RECORDED))

    attempt.train_here(request)
    answer = attempt.answer(REQUEST)
    assert answer is not None, "the request has no answer"
    return attempt, answer


def _small(here: Here) -> Job:
    return Job.small(here.scratch, here.device, training={"steps": STEPS})


def _snapshot(path: Path) -> tuple[int, set[str]]:
    """Return the content of an allocator snapshot without loading its pickle.

    The content is the number of dictionaries (one per segment, block, frame and event), and all
    texts.
    """
    dictionaries, words = 0, set[str]()
    for opcode, argument, _ in pickletools.genops(path.read_bytes()):
        dictionaries += opcode.name == "EMPTY_DICT"
        if isinstance(argument, str):
            words.add(argument)
    return dictionaries, words
