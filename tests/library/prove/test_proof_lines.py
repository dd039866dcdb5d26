"""The lines of a proof: what counts after a kill, another command, or another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.client.errors import UsageError
from trainyard.prove.proof_lines import LINES, ProofRecord, ProofSubject, locked

SUBJECT = ProofSubject(slots=4, time="10m", local=True)


def line(check: str, status: str = "passed", seconds: float = 2.0) -> dict[str, Any]:
    return {"check": check, "stage": check.partition("/")[0], "status": status, "seconds": seconds}


def test_a_second_command_continues_the_run_of_the_first(tmp_path: Path) -> None:
    first = ProofRecord(tmp_path, SUBJECT)
    first.begin({"client": "1"})
    first.add(line("layouts/fsdp-4"))
    second = ProofRecord(tmp_path, SUBJECT)
    second.begin({"client": "1"})
    assert second.run == first.run
    assert [each["check"] for each in second.checks] == ["layouts/fsdp-4"]
    assert second.seconds == 2.0


def test_another_start_is_no_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.0, 0.0))
    ProofRecord(tmp_path, SUBJECT).begin({"client": "1"})
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 0.0, 0.0))
    again = ProofRecord(tmp_path, SUBJECT)
    again.begin({"client": "1"})
    assert again.start["load"] == 0.5
    again.begin({"client": "2"})
    assert again.start["load"] == 9.0
    remote = ProofRecord(tmp_path / "b", ProofSubject(slots=4, time="10m", local=False))
    remote.begin({})
    assert remote.start.keys() == {"time"}, "the load of this machine is of no interest"


def test_lines_of_another_version_do_not_count(tmp_path: Path) -> None:
    record = ProofRecord(tmp_path, SUBJECT)
    record.begin({"client": "1"})
    record.add(line("layouts/fsdp-4"))
    record.begin({"client": "2"})
    assert record.checks == []
    assert record.facts == {"client": "2"}
    assert record.start["load"] >= 0
    assert record.seconds == 0.0, "the repeated checks have time"


def test_the_last_line_of_a_check_counts(tmp_path: Path) -> None:
    record = ProofRecord(tmp_path, SUBJECT)
    record.begin({})
    record.add(line("saves/bandwidth", "failed"))
    record.add(line("layouts/fsdp-4"))
    record.add(line("saves/bandwidth"))
    found = [(each["check"], each["status"]) for each in record.checks]
    assert found == [("saves/bandwidth", "passed"), ("layouts/fsdp-4", "passed")]


def test_a_line_cut_off_by_a_kill_is_passed_over_and_ended(tmp_path: Path) -> None:
    record = ProofRecord(tmp_path, SUBJECT)
    record.begin({})
    with (tmp_path / LINES).open("a") as file:
        file.write('{"check": "layouts/fsd')
    again = ProofRecord(tmp_path, SUBJECT)
    again.begin({})
    again.add(line("layouts/fsdp-4"))
    assert [each["check"] for each in ProofRecord(tmp_path, SUBJECT).checks] == ["layouts/fsdp-4"]


@pytest.mark.parametrize(
    "other",
    [
        ProofSubject(slots=8, time="10m", local=True),
        ProofSubject(slots=4, time="1h", local=True),
        ProofSubject(slots=4, time="10m", local=False),
    ],
)
def test_another_command_is_refused(tmp_path: Path, other: ProofSubject) -> None:
    ProofRecord(tmp_path, SUBJECT).begin({})
    with pytest.raises(UsageError, match="another command: slots=4 time=10m local=True"):
        ProofRecord(tmp_path, other)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("")
    with pytest.raises(UsageError, match="cannot keep results in"):
        ProofRecord(tmp_path / "to", SUBJECT)


def test_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text(json.dumps([1]) + "\n" + json.dumps({"other": 1}) + "\nno JSON\n")
    assert ProofRecord(tmp_path, SUBJECT).checks == []


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(UsageError, match="another `trainyard prove` uses"),
        locked(tmp_path),
    ):
        pytest.fail("both hold the folder")
    with locked(tmp_path):
        pass
