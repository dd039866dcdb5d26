"""The ladder's runner: which checks run, which lines they leave, and when the command ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainyard.client.errors import ConnectionFailedError, UsageError
from trainyard.client.sdk import Client
from trainyard.prove import runner
from trainyard.prove.bench import Bench, CheckError, NotPossibleError, NotRunError
from trainyard.prove.figures import Figure, at_most, reported
from trainyard.prove.html_report import REPORT
from trainyard.prove.ladder import SECONDS, Check
from trainyard.prove.proof_lines import ProofRecord, ProofSubject

SUBJECT = ProofSubject(slots=2, time="10m", local=False)
Checked = Callable[[Bench], list[Figure]]


def node(**changed: Any) -> SimpleNamespace:
    hardware = SimpleNamespace(
        device="cpu", slots=4, device_name="CPU", driver=None, cores=2, memory_bytes=2**34
    )
    fields = {"name": "a", "online": True, "version": "1", "hardware": hardware}
    return SimpleNamespace(**fields | changed)


def yard(*nodes: SimpleNamespace) -> Client:
    return cast(
        Client, SimpleNamespace(nodes=lambda: list(nodes or [node()]), url="http://127.0.0.1:1")
    )


def good(bench: Bench) -> list[Figure]:
    return [at_most("off", 0.0, 1.0)]


def run(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *checks: tuple[str, Checked],
    on: Client | None = None,
    announced: Callable[[str, int, int], None] | None = None,
) -> tuple[bool, list[dict[str, Any]]]:
    """Run a ladder of these checks; return the verdict, and the new lines."""
    made = [
        Check(name.partition("/")[0], name, check, seconds=60.0, optional="layouts" in name)
        for name, check in checks
    ]
    monkeypatch.setattr(runner, "ladder", lambda *_: made)
    told: list[dict[str, Any]] = []
    record = ProofRecord(folder, SUBJECT)
    held = runner.run_ladder(
        on or yard(), record, folder, tell=told.append, announce=announced or _silent
    )
    return held, told


def _silent(name: str, number: int, count: int) -> None:
    """Announce nothing."""


def test_a_check_that_passed_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def bad(bench: Bench) -> list[Figure]:
        return [at_most("off", 2.0, 1.0)]

    held, told = run(monkeypatch, tmp_path, ("layouts/good", good), ("layouts/bad", bad))
    assert not held
    assert [line["status"] for line in told] == ["passed", "failed"]
    assert told[1]["error"] == "off is 2.0, not <= 1"
    held, told = run(monkeypatch, tmp_path, ("layouts/good", good), ("layouts/bad", good))
    assert held
    assert [line["check"] for line in told] == ["layouts/bad"]
    assert "All 2 checks held" in (tmp_path / REPORT).read_text()


def test_a_check_is_announced_with_its_place_among_all_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(bench: Bench) -> list[Figure]:
        assert seen[-1][0] == "layouts/b", "before it runs"
        return good(bench)

    def announced(*place: Any) -> None:
        seen.append(place)

    run(monkeypatch, tmp_path, ("layouts/a", good))
    run(monkeypatch, tmp_path, ("layouts/a", good), ("layouts/b", note), announced=announced)
    assert seen == [("layouts/b", 2, 2)]


@pytest.mark.parametrize(
    ("error", "status", "held"),
    [
        (NotPossibleError("needs 8 devices"), "skipped", True),
        (NotRunError("job x is queued"), "not_run", False),
        (ZeroDivisionError("no time"), "failed", False),
        (CheckError("job x is failed"), "failed", False),
        (UsageError("no such thing"), "failed", False),
        (TimeoutError("verify is still running"), "failed", False),
    ],
)
def test_an_error_of_a_check_is_its_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, status: str, held: bool
) -> None:
    def raises(bench: Bench) -> list[Figure]:
        raise error

    found, told = run(monkeypatch, tmp_path, ("layouts/a", raises), ("layouts/b", good))
    assert found is held
    assert [line["status"] for line in told] == [status, "passed"]
    assert str(error) in str(told[0].get("error") or told[0].get("reason"))


def test_a_required_check_that_is_refused_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(bench: Bench) -> list[Figure]:
        raise NotPossibleError("TRAINYARD_ALLOW_CODE is not set")

    held, told = run(monkeypatch, tmp_path, ("machine/probe", refused))
    assert not held
    assert told[0]["error"] == "TRAINYARD_ALLOW_CODE is not set"


def test_a_check_without_a_bound_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held, told = run(monkeypatch, tmp_path, ("saves/a", lambda _: [reported("seconds", 1.0)]))
    assert not held
    assert told[0]["error"] == "the check has no bound"


def test_a_lost_server_ends_the_command_and_leaves_no_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(bench: Bench) -> list[Figure]:
        raise ConnectionFailedError("http://127.0.0.1:1", OSError("refused"))

    with pytest.raises(ConnectionFailedError):
        run(monkeypatch, tmp_path, ("layouts/a", good), ("layouts/b", lost))
    held, told = run(monkeypatch, tmp_path, ("layouts/a", good), ("layouts/b", good))
    assert held
    assert [line["check"] for line in told] == ["layouts/b"]


def test_checks_beyond_the_time_limit_do_not_run_and_failures_remain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def bad(bench: Bench) -> list[Figure]:
        return [at_most("off", 2.0, 1.0)]

    monkeypatch.setitem(SECONDS, "10m", 15.2)
    ladder = (("layouts/a", bad), ("layouts/b", good))
    run(monkeypatch, tmp_path, ladder[0])
    monkeypatch.setitem(SECONDS, "10m", 15.0)
    held, told = run(monkeypatch, tmp_path, *ladder)
    assert not held
    assert [(line["check"], line["status"]) for line in told] == [("layouts/b", "not_run")]
    assert told[0]["reason"] == "the time of the ladder (10m) was over"
    assert "off is 2.0, not &lt;= 1" in (tmp_path / REPORT).read_text()


def test_an_upgrade_repeats_the_checks_and_gives_them_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(monkeypatch, tmp_path, ("layouts/a", good))
    record = ProofRecord(tmp_path, SUBJECT)
    record.add({"check": "layouts/b", "stage": "layouts", "status": "failed", "seconds": 590.0})
    upgraded = yard(node(version="2"))
    held, told = run(monkeypatch, tmp_path, ("layouts/a", good), on=upgraded)
    assert held
    assert [line["status"] for line in told] == ["passed"]


def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(folder: Path, record: ProofRecord) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "write_report", full)
    with pytest.raises(UsageError, match=r"cannot keep results in .*No space left"):
        run(monkeypatch, tmp_path, ("layouts/a", good))


def test_a_repeated_check_submits_new_jobs_and_an_interrupted_one_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys: list[str] = []

    def note(bench: Bench) -> list[Figure]:
        keys.append(bench.keys.own)
        assert bench.seconds_left <= 60.0
        if len(keys) == 1:
            raise KeyboardInterrupt
        raise CheckError("failed")

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, ("layouts/a", note))
    run(monkeypatch, tmp_path, ("layouts/a", note))
    run(monkeypatch, tmp_path, ("layouts/a", note))
    assert keys[0] == keys[1]
    assert keys[1] != keys[2]


def test_too_few_slots_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offline = node(online=False)
    with pytest.raises(UsageError, match="--slots 2: the online nodes have 0 GPUs and 0 CPU slots"):
        run(monkeypatch, tmp_path, ("layouts/a", good), on=yard(offline))


def test_gpus_are_tested_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus = SimpleNamespace(**vars(node().hardware) | {"device": "cuda", "slots": 2})
    seen: list[str] = []

    def note(bench: Bench) -> list[Figure]:
        seen.append(bench.device)
        return good(bench)

    run(monkeypatch, tmp_path, ("layouts/a", note), on=yard(node(), node(name="b", hardware=gpus)))
    assert seen == ["cuda"]
