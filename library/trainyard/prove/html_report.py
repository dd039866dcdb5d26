"""`report.html`: the results in a folder as one page without outside parts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from html import escape
from pathlib import Path

from trainyard.prove.bench import PICTURES
from trainyard.prove.ladder import SECONDS
from trainyard.prove.proof_lines import Line, ProofRecord
from trainyard.prove.report_style import STYLE
from trainyard.run.atomic import replace_file

REPORT = "report.html"

STAGES = {
    "machine": ("Machines", "Nodes, clocks, and what each rank computes, sends and writes alone."),
    "layouts": (
        "Layouts",
        "Each layout trains a small job in float32 with dropout. Sequences, learning rates and "
        "losses are compared with one rank, step by step.",
    ),
    "resumes": (
        "Chains of resumes",
        "One job is stopped, or killed without a save, and resumed on another number of slots. "
        "The result is compared with one rank that was never interrupted.",
    ),
    "saves": (
        "Saves and loads",
        "Every load verifies every byte of the checkpoint. A save lasts from the end of its step "
        "to the last byte; the write is the time in which its slowest rank wrote its files.",
    ),
    "strategies": (
        "Strategies",
        "One model under each way to distribute it. Speed is the median after the warm-up, without "
        "data and saves; MFU is the share of the device's bfloat16 peak, which is not known for "
        "CPUs.",
    ),
}
WORDS = {"passed": "held", "failed": "failed", "skipped": "not possible", "not_run": "not run"}
STRATEGY_COLUMNS = (
    ("layout", "layout"),
    ("tokens_per_second_per_device", "tokens/s per device"),
    ("peak_gib", "peak GiB"),
    ("mfu", "MFU"),
    ("final_loss_off", "final loss off"),
    ("use", "when to use it"),
)
ABSENT = {"mfu": "no peak known"}
"""Text of a cell without its figure."""


HEADLINES = {
    "machine": ("slots", "nodes"),
    "layouts": ("compared_steps", "loss_off"),
    "resumes": ("ranks", "compared_steps", "loss_off"),
    "saves": ("write_gb_per_second", "load_gb_per_second"),
    "strategies": ("tokens_per_second_per_device",),
}
"""Figures in the line of each check, by stage."""
HOST = ("torch", "Python", "system", "kernel")
"""Facts of the machine with its own plane, in their order on the page."""


def write_report(folder: Path, record: ProofRecord) -> None:
    """Write the page of the checks so far; an earlier page is replaced atomically."""
    replace_file(folder / REPORT, page(record, folder / PICTURES))


def page(record: ProofRecord, pictures: Path) -> str:
    """Return the page as HTML."""
    checks = record.checks
    body = [
        _head(record, checks),
        _findings(checks),
        *(_stage(stage, checks, pictures) for stage in STAGES),
        _repeat(record),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(verdict(checks)[1])}</title><style>{STYLE}</style></head>"
        f"<body><main>\n{''.join(body)}</main></body></html>\n"
    )


def verdict(checks: list[Line]) -> tuple[str, str]:
    """Return the status of the whole proof, and its sentence, such as `All 4 checks held`."""
    by_status = {status: sum(c["status"] == status for c in checks) for status in WORDS}
    held, failed, away = by_status["passed"], by_status["failed"], by_status["not_run"]
    ran = held + failed
    impossible = by_status["skipped"]
    rest = f", {impossible} {'was' if impossible == 1 else 'were'} not possible"
    rest = rest if impossible else ""
    if failed:
        missed = f", {away} did not run" if away else ""
        return "failed", f"{failed} of {ran} checks failed{missed}{rest}"
    if away or not ran:
        return "not_run", f"{held} checks held, {away} did not run{rest}"
    return "passed", f"All {ran} checks held{rest}"


def _head(record: ProofRecord, checks: list[Line]) -> str:
    status, sentence = verdict(checks)
    nodes, host = record.facts.get("nodes", []), record.facts.get("host", {})
    start, minutes = record.start, SECONDS[record.subject.time] / 60
    rows = [
        ("slots", str(record.subject.slots)),
        ("time", f"{record.seconds / 60:.1f} of {minutes:.0f} min"),
        ("start", start.get("time", "unknown")),
        ("last check", checks[-1]["time"] if checks else "none"),
        *([("load at the start", f"{start['load']:.2f}")] if "load" in start else []),
        ("Trainyard", str(record.facts.get("client", "unknown"))),
        *((name, host[name]) for name in HOST if name in host),
    ]
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in rows)
    machines = _table(
        ("node", "device", "slots", "cores", "memory GiB", "driver", "Trainyard"),
        (
            [
                node["name"],
                node["device"],
                node["slots"],
                node["cores"],
                node["memory_gib"],
                node["driver"] or "none",
                node["version"],
            ]
            for node in nodes
        ),
    )
    return (
        f'<header><p class="kicker">Trainyard proof</p><h1 class="{status}">{escape(sentence)}</h1>'
        f"<dl>{facts}</dl>{machines}</header>\n"
    )


def _findings(checks: list[Line]) -> str:
    found = [text for check in checks for text in check["findings"]]
    if not found:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in found)
    return f'<section class="findings"><h2>Findings</h2><ul>{items}</ul></section>\n'


def _stage(stage: str, checks: list[Line], pictures: Path) -> str:
    lines = [check for check in checks if check["stage"] == stage]
    if not lines:
        return ""
    title, words = STAGES[stage]
    table = f'<div class="wide">{_strategies(lines)}</div>' if stage == "strategies" else ""
    return (
        f"<section><h2>{escape(title)}</h2><p>{escape(words)}</p>{table}"
        f"{''.join(_check(line, pictures) for line in lines)}</section>\n"
    )


def _strategies(lines: list[Line]) -> str:
    ran = [line for line in lines if line["figures"]]
    rows = (
        [
            _short_name(line),
            *(line["figures"].get(key, ABSENT.get(key, "")) for key, _ in STRATEGY_COLUMNS),
        ]
        for line in ran
    )
    return _table(("strategy", *(title for _, title in STRATEGY_COLUMNS)), rows)


def _check(line: Line, pictures: Path) -> str:
    """Return one check: its name and status, then its figures, reason, picture and commands."""
    status = line["status"]
    figures = _table(
        ("figure", "value", "bound"),
        ([name, value, _bound(line, name)] for name, value in line["figures"].items()),
    )
    why = line.get("error") or line.get("reason") or ""
    reason = f'<p class="why">{escape(why)}</p>' if why else ""
    # A check without figures may have the picture of an earlier try.
    picture = pictures / f"{line['check'].replace('/', '-')}.svg"
    drawn = ""
    if line["figures"] and picture.exists():
        drawn = f"<figure>{picture.read_text(encoding='utf-8')}</figure>"
    commands = "\n".join(line["commands"])
    repeat = f"<pre>{escape(commands)}</pre>" if commands else ""
    opened = " open" if status == "failed" or drawn else ""
    return (
        f'<details{opened}><summary><span class="chip {status}">{WORDS[status]}</span>'
        f"<span>{escape(_short_name(line))}</span>"
        f'<span class="headline">{escape(_headline(line))}</span>'
        f'<span class="seconds">{line["seconds"]:.1f} s</span></summary>'
        f"{reason}{drawn}{figures if line['figures'] else ''}{repeat}</details>"
    )


def _bound(line: Line, name: str) -> str:
    """Return the bound of a figure; a text without a bound describes what was measured."""
    described = isinstance(line["figures"][name], str)
    return str(line["bounds"].get(name, "description" if described else "measured, no bound"))


def _headline(line: Line) -> str:
    names = [name for name in HEADLINES[line["stage"]] if name in line["figures"]]
    return ", ".join(f"{name.replace('_', ' ')} {_text(line['figures'][name])}" for name in names)


def _repeat(record: ProofRecord) -> str:
    subject, folder = record.subject, shlex.quote(str(record.path.parent))
    local = " --local" if subject.local else ""
    command = f"trainyard prove --slots {subject.slots} --time {subject.time}{local} --to {folder}"
    words = "do it by hand"
    if local:
        plane = shlex.quote(str(record.path.parent / "plane"))
        up = f"TRAINYARD_ALLOW_CODE=true trainyard up --data {plane} --slots {subject.slots}"
        command = f"{up}\n{command}"
        words = "do it by hand, on the control plane that the first command below starts"
    return (
        "<footer><p>A check holds if every figure with a bound is within it; the other figures are "
        "measurements and descriptions. Each check lists the commands that "
        f"{words}. The same figures, one line of JSON for each check, are in "
        "<code>prove.jsonl</code>."
        f"</p><pre>{escape(command)}</pre></footer>\n"
    )


def _short_name(line: Line) -> str:
    return str(line["check"]).partition("/")[2]


def _table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td{_kind(cell)}>{escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _kind(cell: object) -> str:
    number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return ' class="number"' if number else ""


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return str(cell)
