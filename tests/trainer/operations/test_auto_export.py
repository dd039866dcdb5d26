"""Automatic exports on a node: who reads them, what ignores them, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.examples.test_programs import NO_TITAN, ROOT, TITAN
from tests.trainer.runs import JOB, SmallJob
from trainer.checkpoint import manifest as manifests
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.hugging_face import export as exporter
from trainer.models.families import FAMILIES
from trainer.operations.__main__ import main
from trainer.operations.delete import delete_checkpoint
from trainer.storage.io_errors import digest
from trainyard.protocol.manifest import DCP_METADATA, Manifest
from trainyard.protocol.operations import (
    HUGGING_FACE,
    OUTCOME,
    TASK,
    AutoExportTask,
    ExportFormat,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationTask,
)
from trainyard.run.atomic import replace_file
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST
from trainyard.spec.layout import Layout
from trainyard.training.architectures import ARCHITECTURES

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TOKENS_BS = torch.arange(64).view(2, 32)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A job with one checkpoint of two ranks; tests read it."""
    folder = tmp_path_factory.mktemp("job")
    job = SmallJob(folder).changed(
        folder,
        training={"steps": 3},
        model={"dropout": 0.0},
        lr_schedule={"warmup_steps": 1},
        checkpoint={"preflight": False},
    )
    job.launch(1, Layout(dp_shard=2))
    (job.storage / ".trainyard-root").write_text("one\n")
    return job


@pytest.fixture
def job(trained: SmallJob, tmp_path: Path) -> SmallJob:
    """A copy of the job, for tests that change its files."""
    shutil.copytree(trained.storage, tmp_path / trained.storage.name)
    return SmallJob(tmp_path)


def prepared(job: SmallJob, kind: OperationKind, form: ExportFormat = "safetensors") -> Path:
    """Write the folder of an operation on the job's checkpoint, and return it."""
    (manifest,) = manifests.committed_manifests(job.storage, JOB)
    point = job.resume_point(manifest)
    exports = kind == OperationKind.AUTO_EXPORT
    task = OperationTask(
        kind=kind,
        job_id=JOB,
        root="checkpoints",
        paths=(point.path,),
        checkpoint=point,
        auto_export=AutoExportTask(format=form) if exports else None,
    )
    root = str(job.storage)
    order = OperationOrder(task=task, root_path=root, root_id="one", roots={"checkpoints": root})
    operation = job.storage.parent / "operation"
    operation.mkdir(exist_ok=True)
    (operation / OUTCOME).unlink(missing_ok=True)
    (operation / TASK).write_text(order.model_dump_json())
    return operation


def outcome_of(operation: Path) -> OperationOutcome:
    return OperationOutcome.model_validate_json((operation / OUTCOME).read_bytes())


def do(job: SmallJob, kind: OperationKind, form: ExportFormat = "safetensors") -> Any:
    """Run an operation on the job's checkpoint, like a node, and return its outcome."""
    operation = prepared(job, kind, form)
    main(operation)
    return outcome_of(operation)


def export(job: SmallJob, form: ExportFormat = "safetensors") -> OperationOutcome:
    outcome: OperationOutcome = do(job, OperationKind.AUTO_EXPORT, form)
    return outcome


def folder_of(job: SmallJob) -> Path:
    return Path(job.storage, JOB, "a1", "step-3")


def without_index(folder: Path) -> None:
    """Leave `.metadata` out, as a save of many chunks does."""
    (folder / DCP_METADATA).unlink()
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    files = tuple(file for file in manifest.files if file.path != DCP_METADATA)
    text = manifest.model_copy(update={"files": files}).model_dump_json()
    replace_file(folder / MANIFEST, text)
    replace_file(folder / COMMITTED, digest(text.encode()))


def our_logits(folder: Path, manifest: Manifest) -> torch.Tensor:
    """Return the logits of our model with the weights of a checkpoint."""
    section = manifest.model
    assert section is not None
    assert manifest.seq_len is not None
    arch = section.shape_of(ARCHITECTURES[section.family][section.size])
    ours = FAMILIES[section.family](arch, seq_len=manifest.seq_len)
    reader = CheckedReader(folder)
    reader.open(point_at(manifest, folder))
    reader.read({f"model.{name}": tensor.data for name, tensor in ours.named_parameters()})
    with torch.no_grad():
        logits_BSV: torch.Tensor = ours(TOKENS_BS)
    return logits_BSV


@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
def test_torchtitans_own_loader_computes_our_logits(job: SmallJob, tmp_path: Path) -> None:
    result = export(job).export
    assert result is not None
    (manifest,) = manifests.committed_manifests(job.storage, JOB)
    torch.save((TOKENS_BS, our_logits(folder_of(job), manifest)), tmp_path / "logits.pt")
    loader = ROOT / "tests" / "e2e" / "titan_load.py"
    command = [str(TITAN), str(loader), result.path, str(tmp_path / "logits.pt")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr[-2000:]


def test_transformers_computes_our_logits_and_nothing_else_sees_the_export(job: SmallJob) -> None:
    from transformers import AutoModelForCausalLM

    outcome = export(job)
    result = outcome.export
    assert result is not None, outcome.message
    folder = folder_of(job)
    place = f"checkpoints:{JOB}/a1/step-3/{HUGGING_FACE}"
    assert (result.format, result.place, result.dtype) == ("safetensors", place, "float32")
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder / HUGGING_FACE)

    (manifest,) = manifests.committed_manifests(job.storage, JOB)
    logits_BSV = our_logits(folder, manifest)
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS_BS).logits, logits_BSV, atol=1e-5, rtol=0)
    assert logits_BSV.std() > 0.01

    for kind in (OperationKind.SCRUB, OperationKind.VERIFY):
        found = do(job, kind).verification
        assert found.ok, found
    assert manifests.committed_manifests(job.storage, JOB) == [manifest]
    assert export(job).export == result
    assert do(job, OperationKind.DELETE).outcome == "succeeded"
    assert not folder.exists()


def test_dcp_reads_a_checkpoint_that_was_saved_without_its_index(
    job: SmallJob, tmp_path: Path
) -> None:
    folder = folder_of(job)
    listed = export(job, "dcp")
    assert listed.export is not None
    size = (folder / DCP_METADATA).stat().st_size
    assert (listed.export.format, listed.export.files, listed.export.size) == ("dcp", 1, size)
    without_index(folder)
    assert not (folder / DCP_METADATA).exists()
    again = export(job, "dcp")
    assert again.export is not None, again.message
    assert (again.export.path, again.export.size) == (str(folder), size)
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    saved = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert saved["model.norm.weight"].std() > 0
    assert do(job, OperationKind.VERIFY).verification.ok


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_a_damaged_checkpoint_is_not_exported(job: SmallJob, form: ExportFormat) -> None:
    prepared(job, OperationKind.AUTO_EXPORT, form)
    (folder_of(job) / COMMITTED).write_text("0" * 32)
    operation = job.storage.parent / "operation"
    assert main(operation) == 1
    outcome = outcome_of(operation)
    assert outcome.outcome == "failed"
    assert "was changed" in outcome.message
    assert not (folder_of(job) / HUGGING_FACE).exists()


def test_weights_that_have_changed_on_the_disk_are_not_exported(job: SmallJob) -> None:
    operation = prepared(job, OperationKind.AUTO_EXPORT)
    folder = folder_of(job)
    path = max(folder.rglob("*.distcp"), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main(operation) == 1
    outcome = outcome_of(operation)
    assert (outcome.outcome, path.name in outcome.message) == ("failed", True), outcome.message
    assert list(folder.glob("*hugging_face*")) == []


def test_a_killed_export_leaves_nothing_that_counts_and_the_next_one_cleans_up(
    job: SmallJob,
) -> None:
    operation = prepared(job, OperationKind.AUTO_EXPORT)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from trainer.hugging_face import export\n"
        "from trainer.operations.__main__ import main\n"
        "export._save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(Path(sys.argv[1]))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(operation)], check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = folder_of(job)
    assert not (folder / HUGGING_FACE).exists()
    assert len(list(folder.glob(".hugging_face.*.partial"))) == 1
    assert do(job, OperationKind.VERIFY).verification.ok
    assert export(job).outcome == "succeeded"
    assert list(folder.glob(".hugging_face.*")) == []
    half = folder / ".hugging_face.01234567.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert do(job, OperationKind.DELETE).outcome == "succeeded"
    assert not folder.exists()


@pytest.mark.parametrize("moment", ["before the folder", "before the first file"])
def test_a_deleted_checkpoint_does_not_come_back(
    job: SmallJob, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = folder_of(job)
    name = {"before the folder": "export_folder", "before the first file": "_save"}[moment]
    continued = getattr(exporter, name)

    def deleting(*given: Any, **options: Any) -> Any:
        delete_checkpoint(folder)
        return continued(*given, **options)

    monkeypatch.setattr(exporter, name, deleting)
    outcome = export(job)
    assert outcome.outcome == "failed"
    assert "No such file or directory" in outcome.message
    assert not folder.exists()


@pytest.fixture
def small_disk(trained: SmallJob, tmp_path: Path) -> Iterator[SmallJob]:
    """The job on a disk that holds little more than its checkpoint."""
    place = tmp_path / trained.storage.name
    place.mkdir()
    size = sum(path.stat().st_size for path in trained.storage.rglob("*") if path.is_file())
    options = f"size={size + 200_000}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        shutil.copytree(trained.storage, place, dirs_exist_ok=True)
        yield SmallJob(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@needs_root
@pytest.mark.parametrize("is_foreseen", [True, False])
def test_a_full_disk_fails_the_export_and_gets_its_space_back(
    small_disk: SmallJob, is_foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take the space after the check."""
    free = shutil.disk_usage(small_disk.storage).free
    with monkeypatch.context() as patched:
        if not is_foreseen:
            usage = shutil.disk_usage
            lots = usage("/")._replace(free=2**50)
            patched.setattr(shutil, "disk_usage", lambda _: lots)
        outcome = export(small_disk)
    assert outcome.outcome == "failed"
    message = "MiB free, but the export and the next checkpoint need" if is_foreseen else ""
    assert (message or "No space left on device") in outcome.message
    assert shutil.disk_usage(small_disk.storage).free == free
    assert do(small_disk, OperationKind.VERIFY).verification.ok


def test_an_index_that_is_there_costs_no_import_of_torch(job: SmallJob) -> None:
    operation = prepared(job, OperationKind.AUTO_EXPORT, "dcp")
    code = (
        "import sys; from pathlib import Path\n"
        "from trainer.operations.__main__ import main\n"
        "assert main(Path(sys.argv[1])) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code, str(operation)], check=True)
    assert time.monotonic() - started < 30
