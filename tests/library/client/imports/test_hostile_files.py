"""Hostile files: reading each ends soon, and affects no other run."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.event_files import event, framed, varint
from trainyard.client.errors import UsageError
from trainyard.client.past_runs import mlflow_store
from trainyard.client.past_runs.mlflow_store import typed
from trainyard.client.past_runs.past_run import PastRun, UnreadRun
from trainyard.client.past_runs.runs import find_runs
from trainyard.run.other_tools.event_files import masked_crc32c

RECORDED = Path(__file__).parent / "recorded"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """Check that each is read within a few seconds, and with little memory."""
    started = time.process_time()
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - started < 20
    assert peak < 200 * 2**20


def with_run(folder: Path, name: str, meta: str) -> Path:
    """Add a run to a copy of the recorded folder."""
    if not (folder / "mlruns").exists():
        shutil.copytree(RECORDED / "mlflow/mlruns", folder / "mlruns")
    own = folder / "mlruns/0" / name
    own.mkdir(parents=True)
    (own / "meta.yaml").write_text(meta)
    return own


def found(tool: str, path: Path) -> tuple[list[PastRun], list[UnreadRun]]:
    runs: list[PastRun] = []
    unread: list[UnreadRun] = []
    for run in find_runs(tool, path):  # type: ignore[arg-type]
        if isinstance(run, PastRun):
            runs.append(run)
        else:
            unread.append(run)
    return runs, unread


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        (f"{BOMB}run_id: bad\nrun_name: *j\n", "aliases are not read"),
        ("run_id: &a [*a]\n", "aliases are not read"),
        ("base: &a {run_id: x}\n<<: *a\n", "aliases are not read"),
        ("run_id: [" * 20_000, "is not readable YAML"),
        ("- run_id: bad\n", "is not a table"),
        ("run_id: {", "is not readable YAML"),
    ],
)
def test_a_meta_yaml_that_cannot_be_read_keeps_no_other_run(
    tmp_path: Path, meta: str, reason: str
) -> None:
    with_run(tmp_path, "bad", meta)
    runs, (unread,) = found("mlflow", tmp_path)
    assert [run.name for run in runs] == ["deep-lake"]
    assert unread.name.endswith("mlruns/0/bad")
    assert reason in unread.reason


@pytest.mark.parametrize(
    "foreign",
    [b"{% set version = '1' %}\nname: {{ name }}\n", b"- a\n", b"\xff\xfe\0", b"a: &a [*a]\n"],
)
def test_a_meta_yaml_that_is_no_run_keeps_no_run(tmp_path: Path, foreign: bytes) -> None:
    """It may belong to the experiment, to a model, or to another tool."""
    with_run(tmp_path, "good", "run_id: good\nrun_name: good\nstatus: 3\n")
    for folder in ("mlruns/0", "mlruns/models/m1", "recipe/one"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "meta.yaml").write_bytes(foreign)
    runs, unread = found("mlflow", tmp_path)
    assert (sorted(run.name for run in runs), unread) == (["deep-lake", "good"], [])
    good = next(run for run in runs if run.name == "good")
    assert any("the name of its experiment is left out" in note for note in good.notes)
    assert not good.tags
    (tmp_path / "mlruns/0/good/params").mkdir()
    (tmp_path / "mlruns/0/good/meta.yaml").write_bytes(foreign)
    assert [run.name for run in found("mlflow", tmp_path)[1]] == [str(tmp_path / "mlruns/0/good")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("-3", -3), ("0.5", 0.5), (".5", 0.5), ("1e-4", 1e-4), ("1.", 1.0)),
        *(("True", True), ("False", False), ("9" * 30, int("9" * 30))),
        # Text, although Python's int() and float() take it.
        *(
            (text, text)
            for text in ("007", "1_000", "20_24", " 5", "5\n", "\uff11\uff12", "nan", "1e999")
        ),
        *((text, text) for text in ("inf", "9" * 5000, "true", "+5", "0x10", "")),
    ],
)
def test_parameters_are_numbers_only_as_numbers_are_written(text: str, value: object) -> None:
    assert (typed(text), type(typed(text))) == (value, type(value))


def test_values_of_a_meta_yaml_are_read_as_they_are_written(tmp_path: Path) -> None:
    meta = f"run_id: 0123\nrun_name: 1e5\nstatus: 3\nstart_time: {'9' * 6000}\nend_time: null\n"
    with_run(tmp_path, "odd", meta)
    runs, _ = found("mlflow", tmp_path)
    odd = next(run for run in runs if run.name == "1e5")
    assert (odd.run_id, odd.state, odd.ended) == ("0123", "succeeded", None)


def test_a_pipe_and_a_link_are_not_read(tmp_path: Path) -> None:
    own = with_run(tmp_path, "pipe", "")
    (own / "meta.yaml").unlink()
    os.mkfifo(own / "meta.yaml")
    linked = with_run(tmp_path, "linked", "")
    (linked / "meta.yaml").unlink()
    (linked / "meta.yaml").symlink_to("/dev/zero")
    runs, unread = found("mlflow", tmp_path)
    assert ([run.name for run in runs], unread) == (["deep-lake"], [])


def changed_store(folder: Path, *statements: str) -> Path:
    path = folder / "mlflow.db"
    shutil.copy(RECORDED / "mlflow/mlflow.db", path)
    with closing(sqlite3.connect(path)) as store:
        for statement in statements:
            store.execute(statement)
        store.commit()
    return path


COLUMNS = (
    "x AS run_uuid, 'n' AS name, '' AS source_name, 'FINISHED' AS status, 1 AS start_time, "
    "1 AS end_time, 1 AS experiment_id, 'active' AS lifecycle_stage"
)


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE runs", f"CREATE VIEW runs AS {ENDLESS} SELECT {COLUMNS} FROM c"],  # noqa: S608
        [
            "ALTER TABLE runs RENAME TO real",
            "CREATE VIEW runs AS SELECT a.* FROM real a, real b, real c, real d, real e",
        ],
        ["DROP TABLE tags", f"CREATE VIEW tags AS {ENDLESS} SELECT x AS key FROM c"],  # noqa: S608
    ],
)
def test_views_of_a_store_are_refused(tmp_path: Path, statements: list[str]) -> None:
    path = changed_store(tmp_path, *statements)
    with pytest.raises(UsageError, match=r"not a (readable )?store of MLflow"):
        found("mlflow", path)


@pytest.mark.parametrize(
    "view",
    [
        f"{ENDLESS} SELECT x AS key, x AS step, x AS value, x AS run_uuid FROM c",  # noqa: S608
        "SELECT name AS key, 1 AS step, 1 AS value, run_uuid FROM runs",
    ],
)
def test_a_view_in_place_of_metrics_ends_no_import(tmp_path: Path, view: str) -> None:
    changed_store(tmp_path, "DROP TABLE metrics", f"CREATE VIEW metrics AS {view}")
    shutil.copytree(RECORDED / "mlflow/mlruns", tmp_path / "mlruns")
    runs, unread = found("mlflow", tmp_path)
    assert [run.name for run in runs] == ["deep-lake"]
    assert ["'metrics' is not a table" in each.reason for each in unread] == [True]


def test_what_reads_anything_else_is_not_authorized(tmp_path: Path) -> None:
    """If a view passes for a table, its own reads and recursion end the query."""
    view = f"CREATE VIEW params AS {ENDLESS} SELECT x AS key FROM c"  # noqa: S608
    with closing(sqlite3.connect(changed_store(tmp_path, "DROP TABLE params", view))) as store:
        store.set_authorizer(mlflow_store._authorized)
        for query in ("SELECT key FROM params", "SELECT hex(key) FROM tags", "PRAGMA user_version"):
            with pytest.raises(sqlite3.DatabaseError, match=r"prohibited|authorized"):
                store.execute(query).fetchone()
        assert store.execute("SELECT key FROM tags").fetchone()


def test_generated_columns_call_no_function(tmp_path: Path) -> None:
    columns = "key, step, timestamp, is_nan, run_uuid"
    path = changed_store(
        tmp_path,
        f"CREATE TABLE other ({columns}, value AS (length(hex(zeroblob(8000000)))))",
        f"INSERT INTO other ({columns}) SELECT {columns} FROM metrics",  # noqa: S608
        "DROP TABLE metrics",
        "ALTER TABLE other RENAME TO metrics",
    )
    with pytest.raises(UsageError, match="'metrics' is not a table of stored values"):
        found("mlflow", path)


@pytest.mark.parametrize("table", ["params", "tags", "runs"])
def test_a_huge_value_is_not_read(tmp_path: Path, table: str) -> None:
    column = "name" if table == "runs" else "value"
    path = changed_store(tmp_path)
    with closing(sqlite3.connect(path)) as store:
        (run_id,) = store.execute("SELECT run_uuid FROM runs WHERE name = 'calm-river'").fetchone()
        query = f"UPDATE {table} SET {column} = zeroblob(90000000) WHERE run_uuid = ?"  # noqa: S608
        store.execute(query, (run_id,))
        store.commit()
    runs, (unread,) = found("mlflow", path)
    assert [run.name for run in runs] == ["rough-sea"]
    assert "too big" in unread.reason


def test_runs_come_in_the_order_of_their_rows(tmp_path: Path) -> None:
    ids = "UPDATE runs SET run_uuid = '{}' WHERE name = '{}'"
    path = changed_store(tmp_path, ids.format("z", "calm-river"), ids.format("a", "rough-sea"))
    assert [run.name for run in found("mlflow", path)[0]] == ["calm-river", "rough-sea"]


def test_a_huge_name_of_an_experiment_keeps_no_run_of_another(tmp_path: Path) -> None:
    path = changed_store(
        tmp_path,
        "INSERT INTO experiments (experiment_id, name) VALUES (777, zeroblob(90000000))",
        "UPDATE runs SET experiment_id = 777 WHERE name = 'calm-river'",
    )
    runs, (unread,) = found("mlflow", path)
    assert [(run.name, run.tags[0]) for run in runs] == [("rough-sea", "experiment:rivers")]
    assert "too big" in unread.reason


def test_a_query_ends_after_the_work_that_the_file_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_store, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(mlflow_store, "OPERATIONS_A_BYTE", 0)
    monkeypatch.setattr(mlflow_store, "OPERATIONS_AT_ONCE", 10)
    monkeypatch.setattr(mlflow_store._Store, "_is_over", lambda self: True)
    path = changed_store(tmp_path)
    with pytest.raises(UsageError, match="interrupted"):
        found("mlflow", path)


def test_a_store_of_something_else_keeps_no_other_one(tmp_path: Path) -> None:
    changed_store(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("CREATE TABLE t (a)")
    runs, (unread,) = found("mlflow", tmp_path)
    assert len(runs) == 2
    assert unread.name.endswith("a.db")


def test_lengths_of_records_are_compared_with_what_there_is(tmp_path: Path) -> None:
    size = 2**40
    head = struct.pack("<Q", size)
    whole = event(1, loss=1.0)
    inner = b"\x0a" + varint(size) + b"loss"
    content = whole + framed(b"\x2a" + varint(len(inner)) + inner) + event(2, loss=2.0)
    content += head + struct.pack("<I", masked_crc32c(head)) + b"x" * 100
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    ((run,), _) = found("tensorboard", tmp_path)
    assert run.series["loss"].steps.tolist() == [1, 2]
    assert len(run.notes) == 2


def test_a_long_record_of_wandb_is_passed_over(tmp_path: Path) -> None:
    """Each part is complete, but their record has no end."""
    part = b"\x12" + varint(2**40) + bytes(32_000)
    kinds = [2, *[3] * 1200, 4]
    with (tmp_path / "run-abcd1234.wandb").open("wb") as file:
        file.write(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
        room = 32 * 1024 - 7
        for kind in kinds:
            if room < 7 + len(part):
                file.write(bytes(room))
                room = 32 * 1024
            file.write(
                struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind)
            )
            file.write(part)
            room -= 7 + len(part)
    ((run,), _) = found("wandb", tmp_path)
    assert run.points == 0
    assert any("16 MiB" in note for note in run.notes)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 123456789\n"


@pytest.mark.parametrize(
    ("tool", "name"),
    [("wandb", "run-abcd1234.wandb"), ("tensorboard", "events.out.tfevents.1"), ("mlflow", "x.db")],
)
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, tool: str, name: str) -> None:
    path = tmp_path / name
    path.write_text(POINTER)
    _, (unread,) = found(tool, tmp_path)
    assert "is a pointer of Git LFS to a file of 123,456,789 bytes" in unread.reason
    with pytest.raises(UsageError, match="git lfs pull"):
        found(tool, path)


def test_a_damaged_description_of_an_experiment_keeps_its_runs(tmp_path: Path) -> None:
    with_run(tmp_path, "one", "run_id: one\nrun_name: one\nstatus: 3\n")
    (tmp_path / "mlruns/0/meta.yaml").write_text("")  # as MLflow leaves it briefly
    runs, unread = found("mlflow", tmp_path)
    (run,) = [run for run in runs if run.name == "one"]
    assert run.tags == ()
    assert any("the name of its experiment is left out" in note for note in run.notes)
    assert unread == []


def test_a_run_without_its_description_is_named(tmp_path: Path) -> None:
    own = with_run(tmp_path, "lost", "")
    (own / "metrics").mkdir()
    (own / "metrics/loss").write_text("1700000000000 1.0 1\n")
    (own / "meta.yaml").unlink()
    (tmp_path / "mlruns/0/models").mkdir()
    _, unread = found("mlflow", tmp_path)
    assert [one.name for one in unread] == [str(own)]
    assert "no meta.yaml" in unread[0].reason
