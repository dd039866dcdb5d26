"""A background save: its contents, the waits for it, and the report of its failure."""

import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.checkpoint.toy import (
    JOB,
    Refusal,
    build,
    full_tensors,
    load,
    manager,
    refusal,
    resume_point,
    state_at,
    train,
)
from tests.trainer.points import at_points
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.chunks.divided_tensor import TensorChunk, divided
from trainer.checkpoint.manager import SaveObserver
from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.pending_save import Staging
from trainer.checkpoint.save_folder import Point, create_folder, write_durably
from trainer.checkpoint.writer import checkpoint_writer, save_plan
from trainer.errors import LaunchError, RunError
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

LAYOUT = Layout(dp_shard=2)
BACKGROUND = CheckpointSection(async_mode="async")
PINNED = CheckpointSection(async_mode="async_with_pinned_mem")


class SlowStaging(Staging):
    """Copies only after the test's permission."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.let = threading.Event()
        self.copied: list[list[int]] = []

    def copy(self, tensors: Mapping[TensorChunk, Tensor]) -> dict[TensorChunk, Tensor]:
        self.let.wait()
        copies = super().copy(tensors)
        self.copied.append([copy.data_ptr() for copy in copies.values()])
        return copies


def _train_beside(root: Path) -> tuple[list[Manifest], list[dict[str, Tensor]], list[bool], bool]:
    """Save steps 1 and 2 while the tensors change as early as possible."""
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT, section=BACKGROUND)
    staging = saver._staging = SlowStaging(torch.device("cpu"), pinned=False)
    manifests, expected, staged_early = [], [], []
    for step in (1, 2):
        train(model, optimizer, steps=1)
        expected.append(full_tensors(model, optimizer))
        staging.let.clear()
        save = saver.begin(model, optimizer, state_at(step), kind="interval")
        time.sleep(0.2)
        staged_early.append(save.staged.is_set())
        staging.let.set()
        save.staged.wait()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(9.0)
        manifests.append(save.result())
        build_again, _ = build(LAYOUT, seed=1)
        model.load_state_dict(build_again.state_dict())
    return manifests, expected, staged_early, staging.copied[0] == staging.copied[1]


def _load(root: Path, manifest: Manifest) -> dict[str, Tensor]:
    model, optimizer = build(LAYOUT, seed=2)
    load(root, LAYOUT, model=model, optimizer=optimizer, resume=resume_point(manifest))
    return full_tensors(model, optimizer)


def test_what_is_saved_is_what_was_there_when_it_began(tmp_path: Path) -> None:
    answers = run_ranks(2, _train_beside, tmp_path)
    manifests, expected, _, _ = answers[0]
    for _, _, staged_early, same_buffers in answers:
        assert staged_early == [False, False], "training would have had to wait"
        assert same_buffers, "the second save takes no memory of its own"
    assert committed_manifests(tmp_path, JOB) == manifests
    for manifest, tensors in zip(manifests, expected, strict=True):
        for loaded in run_ranks(2, _load, tmp_path, manifest):
            assert loaded.keys() == tensors.keys()
            assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def _save_counted(root: Path, section: CheckpointSection, kind: str) -> int:
    """Save a buffer that the next forward pass changes before the save starts to read it."""
    model, optimizer = build(LAYOUT, seed=1)
    seen = torch.tensor(5)
    model.register_buffer("seen", seen)
    saver = manager(root, LAYOUT, section=section)
    passed = threading.Event()

    def hold(point: Point, _path: Path) -> None:
        if point is Point.PLANNED:
            passed.wait()

    with at_points(hold):
        save = saver.begin(model, optimizer, state_at(1), kind=kind)
        seen += 1
        passed.set()
        manifest = save.result()
    load(root, LAYOUT, model=model, optimizer=optimizer, resume=resume_point(manifest))
    return int(seen)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("disabled", "preflight"), ("async", "preflight"), ("async", "interval")],
)
def test_a_buffer_that_the_next_forward_pass_changes_is_saved_as_it_was(
    tmp_path: Path, mode: str, kind: str
) -> None:
    section = CheckpointSection.model_validate({"async_mode": mode})
    assert run_ranks(2, _save_counted, tmp_path, section, kind) == [5, 5]


def _fail_in_background(root: Path) -> tuple[Refusal, bool]:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT, section=BACKGROUND)
    saver.save(model, optimizer, state_at(1), kind="interval")
    # The folder cannot be created: only rank 0 fails, in its thread.
    if dist.get_rank() == 0:
        shutil.rmtree(root / JOB / "a1")
        (root / JOB / "a1").write_text("in the way")
    dist.barrier()
    save = saver.begin(model, optimizer, state_at(2), kind="interval")
    save.staged.wait()  # training continues, and nothing is raised
    with pytest.raises(RunError) as caught:
        saver.begin(model, optimizer, state_at(3), kind="interval")
    return refusal(caught.value), save.done()


def test_a_failure_reaches_every_rank_at_the_next_call(tmp_path: Path) -> None:
    answers = run_ranks(2, _fail_in_background, tmp_path)
    for (kind, text, path, _), ended in answers:
        assert kind == "CheckpointError"
        assert "cannot create" in text
        assert path is not None
        assert path.startswith(str(tmp_path / JOB / "a1"))
        assert ended
    assert len({answer[0][1] for answer in answers}) == 1


def _begin_two(root: Path) -> tuple[list[int], list[str]]:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT, section=BACKGROUND)
    seen: list[str] = []
    under_way: list[int] = []

    class Commits(SaveObserver):
        def committed(self, manifest: Manifest) -> None:
            seen.append(manifest.checkpoint_id)

    saver.starts_at(state_at(0), Commits())

    def slow_commit(path: Path, content: bytes) -> None:
        if path.name == COMMITTED:
            under_way.append(threading.active_count())
            time.sleep(0.3)
        write_durably(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "write_durably", slow_commit)
        for step in (1, 2):
            saver.begin(model, optimizer, state_at(step), kind="interval")
            seen.append(f"begun {step}")
        saver.settle()
    return under_way, seen


def test_one_save_is_under_way_at_a_time(tmp_path: Path) -> None:
    for _, seen in run_ranks(2, _begin_two, tmp_path):
        assert seen == ["begun 1", "toy.a1.step-1", "begun 2", "toy.a1.step-2"]


def _count_plans(root: Path) -> list[int]:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT)
    planned: list[int] = []

    def counted(*arguments: Any, **options: Any) -> object:
        planned.append(1)
        return divided(*arguments, **options)

    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_plan, "divided", counted)
        for step in (0, 1, 2):
            kind = "interval" if step else "preflight"
            saver.save(model, optimizer, state_at(step), kind=kind)
            train(model, optimizer, steps=1)
            counts.append(len(planned))
    return counts


def test_later_saves_use_the_plan_of_the_preflight(tmp_path: Path) -> None:
    answers = run_ranks(2, _count_plans, tmp_path)
    # The first forward pass moves uneven shards to other memory: they are listed again.
    assert all(counts[0] == 1 and counts[1] <= 2 for counts in answers)
    assert all(counts[2] == counts[1] for counts in answers)


def _expected_seconds(root: Path) -> list[float | None]:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT)
    expected = [saver.expected_seconds]

    def wait(point: Point, path: Path) -> None:
        if point is Point.PLANNED and path.name == "step-0":
            time.sleep(1.0)  # like a preflight while the host compiles the first step

    with at_points(wait):
        for step in range(4):
            kind = "interval" if step else "preflight"
            saver.save(model, optimizer, state_at(step), kind=kind)
            expected.append(saver.expected_seconds)
    return expected


def test_a_preflight_that_compilation_slowed_counts_for_three_saves(tmp_path: Path) -> None:
    for before, *slow, fast in run_ranks(2, _expected_seconds, tmp_path):
        assert before is None
        assert len(slow) == 3
        assert min(slow) > 1.0 > fast


def _pinned(root: Path) -> str:
    with pytest.raises(LaunchError) as caught:
        manager(root, LAYOUT, section=PINNED)
    return str(caught.value)


def test_pinned_memory_is_refused_without_an_accelerator(tmp_path: Path) -> None:
    for text in run_ranks(2, _pinned, tmp_path):
        assert "async_with_pinned_mem" in text
        assert "legal: disabled, async" in text


def _raise_fence(root: Path, attempt: int) -> None:
    manager(root, LAYOUT, attempt=attempt).raise_fence()


def test_what_was_left_half_written_is_collected_by_the_next_attempt(tmp_path: Path) -> None:
    folders = [tmp_path / JOB / f"a{attempt}" / "step-5" for attempt in (1, 2, 3)]
    whole = tmp_path / JOB / "a1" / "step-4"
    for folder in (*folders, whole):
        create_folder(folder)
        (folder / "__0_0.distcp").write_bytes(b"half")
    (whole / COMMITTED).write_text("")  # perhaps damaged, but not ours to remove
    run_ranks(1, _raise_fence, tmp_path, 2)
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert whole.exists()
