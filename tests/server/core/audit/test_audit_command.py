"""`python -m server audit`: its exit status and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from sqlalchemy import delete, insert

from server.__main__ import main
from server.app.audit_command import add_audit_options, audit_command
from server.core.audit.audit_tables import audit_marks
from server.core.audit.destinations import AuditFile
from server.core.audit.exporting import export_batch
from server.core.context import Context
from server.core.database.engine import Database
from tests.server.core.audit.entries import alter, sealed, waiting


def run(context: Context, *words: str) -> int:
    parser = argparse.ArgumentParser()
    add_audit_options(parser)
    return audit_command(context, parser.parse_args(words))


def test_verify_compares_with_an_exported_file(
    context: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    sealed(context, 3)
    export_batch(context, AuditFile(path))
    assert run(context, "verify", "--anchors", str(path)) == 0
    words = "3 rows (1 to 3), 3 of them compared with an export are intact\n"
    assert capsys.readouterr().out == words
    alter(context, 2, user="eve")
    assert run(context, "verify") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("row 2 was changed")
    assert printed[-1] == "3 rows (1 to 3) are not intact"


def test_a_missing_file_is_named(
    context: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed(context, 1)
    missing = str(tmp_path / "none")
    assert run(context, "verify", "--anchors", missing) == 2
    assert missing in capsys.readouterr().err


def test_export_writes_the_lines_and_has_a_row(
    context: Context, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    sealed(context, 3)
    assert run(context, "export", "--after", "1") == 0
    assert len(capsysbinary.readouterr().out.splitlines()) == 2
    (row,) = waiting(context)
    assert (row["operation"], row["outcome"], row["break_glass"]) == (
        "audit_exported",
        "read",
        True,
    )


def test_sign_has_a_row(context: Context, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(context, "sign") == 0
    assert capsys.readouterr().out == "the chain was signed already\n"
    assert waiting(context) == []
    with context.database.write() as connection:
        connection.execute(delete(audit_marks))
    assert run(context, "sign") == 0
    assert [row["operation"] for row in waiting(context)] == ["audit_signed"]
    context.secrets.path.unlink()
    assert run(context, "sign") == 1
    assert str(context.secrets.path) in capsys.readouterr().err


def test_a_failed_export_has_its_own_status(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = {"name": "syslog", "seq": 0, "at": context.now(), "problem": "TimeoutError: timed out"}
    with context.database.write() as connection:
        connection.execute(insert(audit_marks).values(mark))
    assert run(context, "verify") == 3
    assert "the export to syslog stopped at row 0: TimeoutError" in capsys.readouterr().out
    with context.database.write() as connection:
        connection.execute(delete(audit_marks).where(audit_marks.c.name == "head"))
    assert run(context, "verify") == 1


def test_only_the_migration_begins_a_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that begins a missing one would sign an emptied log."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", url)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    assert main(["migrate"]) == 0
    assert main(["audit", "verify"]) == 0
    database = Database(url)
    with database.write() as connection:
        connection.execute(delete(audit_marks))
    assert main(["migrate"]) == 0
    assert main(["rotate-key"]) == 0
    assert main(["audit", "verify"]) == 1
    assert "the head of the chain is missing" in capsys.readouterr().out
    database.dispose()
