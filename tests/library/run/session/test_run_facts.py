"""Configuration, summary and tags of a script become facts of its job."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import threading
import time
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.library.run.session.test_script_run import ALONE, run_script
from trainyard.protocol.record_parser import parse_record
from trainyard.run.fact_types.fact_records import MAX_FACTS, MAX_FACTS_BYTES, RunFacts, fact_bytes
from trainyard.run.fact_types.fact_section import FactSection, fact_value, facts_of, legal_tags
from trainyard.run.record_files import replace_record
from trainyard.run.session import Run, session_writer
from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.run_facts import FactBook


def facts(folder: Path) -> RunFacts:
    return parse_record(RunFacts, (folder / "facts.json").read_bytes())


class Colour(Enum):
    RED = "red"


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


VALUES: list[tuple[object, object]] = [
    (True, True),
    (np.bool_(True), True),
    (3, 3),
    (np.int64(3), 3),
    (torch.tensor(3), 3),
    (2**60, str(2**60)),
    (0.5, 0.5),
    (np.float32(0.5), 0.5),
    (torch.tensor([0.5]), 0.5),
    (Fraction(1, 2), 0.5),
    (math.nan, "NaN"),
    (-math.inf, "-Infinity"),
    (None, "None"),
    ("text", "text"),
    (Colour.RED, "red"),
    (Path("/data"), "/data"),
    ([1, "a", None], '[1, "a", null]'),
    ((1, [2]), "[1, [2]]"),
    (torch.float32, "torch.float32"),
    ("a\0\ud800", "a\ufffd\\ud800"),
    ({}, "{}"),
]


@pytest.mark.parametrize(("given", "stored"), VALUES, ids=[repr(given) for given, _ in VALUES])
def test_values_become_json_types(given: object, stored: object) -> None:
    found = fact_value(given)
    assert (found, type(found)) == (stored, type(stored))


def test_long_values_are_cut() -> None:
    assert len(str(fact_value("x" * 5000))) == 1000
    assert str(fact_value(list(range(10**6)))).endswith("...")
    assert fact_value({8, 0}) == fact_value(frozenset([0, 8])) == "[0, 8]"
    assert len(str(fact_value(torch.zeros(1000, 1000)))) <= 1000


def test_tables_have_flat_names_up_to_a_depth() -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(200):
        deep = {"d": deep}
    found = facts_of({"optimizer": {"lr": 0.1, "betas": (0.9, 0.99)}, "deep": deep})
    assert found.pop("optimizer.lr") == 0.1
    assert found.pop("optimizer.betas") == "[0.9, 0.99]"
    ((name, value),) = found.items()
    assert name == "deep" + ".d" * 10
    assert len(str(value)) <= 1000


def test_what_has_no_room_is_left_out_by_name() -> None:
    left_out: list[str] = []
    section = FactSection(lambda name, _: left_out.append(name))
    for number in range(MAX_FACTS + 5):
        section.put(f"n{number}", number)
    assert len(section.facts()) == MAX_FACTS
    assert left_out == [f"n{number}" for number in range(MAX_FACTS, MAX_FACTS + 5)]
    assert not section.put("n0", 0)
    assert section.put("n0", 1)
    assert section.drop("n1")
    assert section.put("late", 1)
    large = FactSection(lambda name, _: left_out.append(name))
    for number in range(100):
        large.put(f"n{number}", "x" * 900)
    assert 0.9 * MAX_FACTS_BYTES < fact_bytes(large.facts()) <= MAX_FACTS_BYTES
    for number in range(100):  # instead of the earlier ones
        large.put(f"n{number}", "y")
    assert len(large.facts()) == 100


def test_an_object_without_a_text_is_left_out() -> None:
    left_out: list[str] = []
    section = FactSection(lambda name, why: left_out.append(f"{name}: {why}"))
    section.put("a", {"odd": Odd(), "large": 10**5000, "fine": 1})
    assert section.facts() == {"a.fine": 1}
    assert left_out[0] == "a.odd: RuntimeError: no text"
    assert left_out[1].startswith("a.large: ValueError: a number of 16,610 bits")


def test_a_name_without_a_text_costs_no_room() -> None:
    left_out: list[str] = []
    section = FactSection(lambda name, why: left_out.append(f"{name}: {why}"))
    for number in range(2 * MAX_FACTS):
        section.put("a", {"n": number, Odd(): 1})
    assert section.facts() == {"a.n": 2 * MAX_FACTS - 1}
    assert set(left_out) == {"a: RuntimeError: no text"}


def test_a_fork_while_a_value_is_set_waits_for_nothing() -> None:
    book = FactBook({}, lambda: None)

    class Forking:
        def __str__(self) -> str:
            book.summary["within"] = 1  # like in the handler of a signal
            pid = os.fork()
            if pid == 0:
                book.config["lr"] = 1
                book.add_tags(["child"])
                os._exit(0)
            return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    forked = threading.Thread(target=book.config.__setitem__, args=("code", Forking()), daemon=True)
    forked.start()
    forked.join(30)
    assert not forked.is_alive()
    assert book.record() == RunFacts(config={"code": "0"}, summary={"within": 1})


def test_tags_become_legal() -> None:
    assert legal_tags(["a b", "a-b", "", "ä", "x" * 99]) == ("a-b", "x" * 64)
    assert len(legal_tags(map(str, range(99)))) == 32


def test_a_script_writes_its_facts(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"program": {"arguments": {"lr": 0.1}}}))
    ended = run_script(
        "import trainyard\n"
        "run = trainyard.init(config={'lr': 0.2, 'net': {'width': 8}}, tags=['a b'])\n"
        "assert run.config['net'] == {'width': 8} and run.arguments == {'lr': 0.1}\n"
        "run.summary['best'] = 1; run.summary.update(loss=float('nan'), best=2)\n"
        "run.config['gone'] = 1; del run.config['gone']; run.add_tags('c', 'a b')\n"
        "trainyard.init(tags='one')\n",
        TRAINYARD_RUN=str(tmp_path),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert facts(tmp_path) == RunFacts(
        config={"lr": 0.2, "net.width": 8},
        summary={"best": 2, "loss": "NaN"},
        tags=("a-b", "c", "one"),
    )
    assert "TRAINYARD_RUN" not in (tmp_path / "facts.json").read_text()


def test_outside_of_a_job_values_are_kept_for_the_script(tmp_path: Path) -> None:
    ended = run_script(
        "import trainyard, threading\n"
        "run = trainyard.init(config={'lr': 0.2})\n"
        "run.summary['best'] = 1\n"
        "assert dict(run.config) == {'lr': 0.2} and run.summary['best'] == 1\n"
        "assert threading.active_count() == 1\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_only_rank_0_writes_facts(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace(rank=1, world_size=2, local_rank=1))
    run.config["lr"] = 1
    run.summary["best"] = 1
    run.close()
    assert not (tmp_path / "facts.json").exists()


def test_the_arguments_alone_are_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"program": {"arguments": {"lr": 0.1}}}))
    run = Run(tmp_path, ALONE)
    run.config["lr"] = 0.1
    run.flush()
    run.close()
    assert not (tmp_path / "facts.json").exists()


def test_a_loop_writes_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[float] = []

    def counted(path: Path, record: Any) -> None:
        writes.append(time.monotonic())
        replace_record(path, record)

    monkeypatch.setattr(session_writer, "replace_record", counted)
    run = Run(tmp_path, ALONE)
    began, step = time.monotonic(), 0
    while time.monotonic() < began + 2.5:
        step += 1
        run.summary["step"] = step
        time.sleep(0.001)
    run.close()
    assert facts(tmp_path).summary == {"step": step}
    assert 1 <= len(writes) <= time.monotonic() - began + 2
    assert min(b - a for a, b in pairwise(writes[:-1])) > 0.9


def test_a_full_disk_costs_no_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, ALONE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(session_writer, "replace_record", full)
        run.summary["best"] = 1
        run.log({"loss": 1.0}, step=1)
        run.flush()
        assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    run.close()
    assert facts(tmp_path).summary == {"best": 1}


def test_what_is_left_out_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, ALONE)
    with caplog.at_level(logging.WARNING, "trainyard"):
        for _ in range(3):
            run.summary["odd"] = Odd()
    assert [record.message for record in caplog.records] == [
        "summary 'odd' is left out of the facts of the job: RuntimeError: no text"
    ]
    run.close()


def test_config_may_be_an_object_of_argparse(tmp_path: Path) -> None:
    ended = run_script(
        "import argparse, trainyard\n"
        "trainyard.init(config=argparse.Namespace(lr=0.2))\n"
        "try: trainyard.init(config=3)\n"
        "except TypeError: print('refused')\n",
        TRAINYARD_RUN=str(tmp_path),
    )
    assert (ended.returncode, ended.stdout) == (0, "refused\n")
    assert facts(tmp_path).config == {"lr": 0.2}
    assert argparse.Namespace(lr=0.2).lr == 0.2
