"""The page of a proof: its verdict, its figures, and what may stand in them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainyard.prove.html_report import REPORT, page, write_report
from trainyard.prove.proof_lines import ProofRecord, ProofSubject

SUBJECT = ProofSubject(slots=4, time="10m", local=True)
FACTS = {
    "client": "1.0.0",
    "host": {"torch": "2.9.1", "kernel": "6.8"},
    "nodes": [
        {
            "name": "a<b>",
            "version": "1.0.0",
            "device": "CPU",
            "slots": 4,
            "driver": None,
            "cores": 2,
            "memory_gib": 23.5,
        }
    ],
}


def line(check: str, status: str = "passed", **fields: Any) -> dict[str, Any]:
    return {
        "stage": check.partition("/")[0],
        "check": check,
        "status": status,
        "seconds": 2.0,
        "figures": {"loss_off": 1.5e-7},
        "bounds": {"loss_off": "<= 1e-05"},
        "findings": [],
        "jobs": [],
        "commands": [],
        "time": "2026-11-30T12:00:00Z",
    } | fields


def made(tmp_path: Path, *lines: dict[str, Any]) -> str:
    record = ProofRecord(tmp_path, SUBJECT)
    record.begin(FACTS)
    for each in lines:
        record.add(each)
    return page(record, tmp_path / "pictures")


class _Balance(HTMLParser):
    """Counts the open elements, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (["passed", "passed"], "All 2 checks held"),
        (["passed", "passed", "skipped"], "All 2 checks held, 1 was not possible"),
        (["passed", "skipped", "skipped"], "All 1 checks held, 2 were not possible"),
        (["passed", "failed", "skipped"], "1 of 2 checks failed, 1 was not possible"),
        (["passed", "failed", "not_run"], "1 of 2 checks failed, 1 did not run"),
        (["passed", "not_run", "skipped"], "1 checks held, 1 did not run, 1 was not possible"),
        (["passed", "not_run"], "1 checks held, 1 did not run"),
        ([], "0 checks held, 0 did not run"),
    ],
)
def test_the_verdict_counts_the_checks(tmp_path: Path, statuses: list[str], verdict: str) -> None:
    lines = [line(f"layouts/{i}", status) for i, status in enumerate(statuses)]
    text = made(tmp_path, *lines)
    assert f">{verdict}</h1>" in text
    assert f"<title>{verdict}</title>" in text


def test_every_figure_bound_reason_and_command_is_on_the_page(tmp_path: Path) -> None:
    text = made(
        tmp_path,
        line("layouts/fsdp-4", commands=["trainyard submit /x/specs/prove-fsdp-4.json"]),
        line("strategies/fsdp", figures={"tokens_per_second_per_device": 1234.5, "mfu": 0.41}),
        line("saves/bandwidth", "failed", error="save_gb_per_second is 0.01, not >= 0.05"),
        line("machine/probe", "failed", findings=["rank 2 on node b: slow"]),
    )
    for part in (
        "1.5e-07",
        "&lt;= 1e-05",
        "trainyard submit /x/specs/prove-fsdp-4.json",
        '<td class="number">1,234</td>',
        "save_gb_per_second is 0.01, not &gt;= 0.05",
        "<li>rank 2 on node b: slow</li>",
        f"trainyard prove --slots 4 --time 10m --local --to {tmp_path}",
    ):
        assert part in text


def test_a_figure_without_a_bound_is_marked_as_such(tmp_path: Path) -> None:
    figures = {"loss_off": 0.0, "save_seconds": 1.5, "layout": "FSDP 4", "ranks": "4 -> 1"}
    text = made(tmp_path, line("layouts/a", figures=figures, bounds={"ranks": "== 4 -> 1"}))
    assert text.count("<td>measured, no bound</td>") == 2
    assert "<td>FSDP 4</td><td>description</td>" in text
    assert "<td>== 4 -&gt; 1</td>" in text
    assert "Each figure has its bound" not in text


def test_the_end_starts_the_plane_of_the_proof_with_code_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "my proof"
    text = made(folder)
    plane = f"trainyard up --data &#x27;{folder}/plane&#x27; --slots 4\n"
    assert f"<pre>TRAINYARD_ALLOW_CODE=true {plane}trainyard prove" in text
    assert f"--to &#x27;{folder}&#x27;</pre>" in text
    on_server = ProofRecord(tmp_path / "b", ProofSubject(slots=4, time="1h", local=False))
    on_server.begin(FACTS)
    assert "trainyard up" not in page(on_server, tmp_path)


def test_the_head_has_versions_start_and_times_with_their_unit(tmp_path: Path) -> None:
    text = made(tmp_path, line("layouts/fsdp-4", seconds=348.0))
    for part in (
        "<dt>time</dt><dd>5.8 of 10 min</dd>",
        "<dt>torch</dt><dd>2.9.1</dd>",
        "<dt>kernel</dt><dd>6.8</dd>",
        "<dt>load at the start</dt>",
        "<th>Trainyard</th>",
    ):
        assert part in text
    assert re.search(r"<dt>start</dt><dd>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ</dd>", text)


def test_an_unknown_share_of_the_peak_has_its_reason(tmp_path: Path) -> None:
    assert "<td>no peak known</td>" in made(tmp_path, line("strategies/fsdp"))
    figures = {"mfu": 0.41}
    assert "no peak known" not in made(tmp_path / "b", line("strategies/fsdp", figures=figures))


def test_names_and_messages_cannot_add_markup(tmp_path: Path) -> None:
    text = made(tmp_path, line("layouts/x", "failed", error="</p><script>alert(1)</script>"))
    assert "<script" not in text
    assert "a&lt;b&gt;" in text


def test_the_page_is_balanced_and_has_no_outside_parts(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "resumes-chain-1.svg").write_text("<svg><g></g></svg>")
    text = made(tmp_path, line("layouts/fsdp-4"), line("resumes/chain-1"))
    parser = _Balance()
    parser.feed(text)
    assert parser.open == []
    assert "<figure><svg>" in text
    assert "http" not in text
    assert "src=" not in text


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    record = ProofRecord(tmp_path, SUBJECT)
    record.begin(FACTS)
    write_report(tmp_path, record)
    record.add(line("layouts/fsdp-4"))
    write_report(tmp_path, record)
    assert "fsdp-4" in (tmp_path / REPORT).read_text()
