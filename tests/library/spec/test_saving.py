"""The fields of section `checkpoint` that must agree with each other and with the nodes."""

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec
from trainyard.training.known_devices import Slot


def _problems(document: dict[str, Any], *slots: Slot) -> list[tuple[str, str]]:
    try:
        check_job_spec(parse_job_spec(document), slots=slots)
    except SpecError as error:
        return [(problem.pointer, problem.detail) for problem in error.problems]
    return []


def _job(world_size: int = 2, device: str = "auto", **checkpoint: object) -> dict[str, Any]:
    return {
        "resources": {"world_size": world_size, "device": device},
        "checkpoint": checkpoint,
    }


@pytest.mark.parametrize("writers", ["auto", "all", "one_replica", 1, 2])
@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_each_choice_runs_on_cpus(writers: object, mode: str) -> None:
    assert not _problems(_job(device="cpu", writers=writers, async_mode=mode))


def test_more_writers_than_ranks() -> None:
    detail = "writers=3, but world_size=2; legal: 1 to 2, 'all'"
    assert _problems(_job(writers=3)) == [("/checkpoint/writers", detail)]


def test_a_ceiling_for_nothing() -> None:
    ((pointer, detail),) = _problems(_job(staging_gib=1.0))
    assert pointer == "/checkpoint/staging_gib"
    assert "with writers='auto' no rank writes shards of others" in detail
    assert not _problems(_job(staging_gib=1.0, writers=1))


def test_pinned_memory_needs_an_accelerator() -> None:
    cpu = Slot(device="cpu", name="x86", memory_bytes=2**30)
    gpu = Slot(device="cuda", name="NVIDIA H100 80GB HBM3", memory_bytes=2**36)
    pinned = _job(async_mode="async_with_pinned_mem")
    assert not _problems(pinned)
    assert not _problems(pinned, cpu, gpu)
    on_cpus = _job(device="cpu", async_mode="async_with_pinned_mem")
    for problems in (_problems(pinned, cpu), _problems(on_cpus), _problems(on_cpus, cpu, gpu)):
        ((pointer, detail),) = problems
        assert pointer == "/checkpoint/async_mode"
        assert "legal: disabled, async" in detail
