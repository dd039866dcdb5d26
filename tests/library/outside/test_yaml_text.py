"""YAML as people write it: the core schema of YAML 1.2, unique keys, bounded aliases."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trainyard.client.spec_file import read_spec_file
from trainyard.outside.yaml_text import MAX_CHARACTERS, read_yaml
from trainyard.spec.job import parse_job_spec


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("1e-4", 1e-4), ("1E5", 1e5), ("1.e3", 1000.0), (".5", 0.5), ("-1.", -1.0)),
        *(("+1", 1), ("010", 10), ("-007", -7), ("0o17", 15), ("0x1F", 31), ("0", 0)),
        *((".inf", math.inf), ("-.Inf", -math.inf), ("+.INF", math.inf)),
        *(("true", True), ("True", True), ("FALSE", False)),
        *(("~", None), ("null", None), ("", None)),
    ],
)
def test_a_plain_word_of_the_core_schema(word: str, value: object) -> None:
    read = read_yaml(f"a: {word}")["a"]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    "word",
    [
        *("on", "off", "yes", "no", "y", "N", "On", "NO", "tRUE", "nULL"),
        *("1:30", "1:30.5", "2020-01-01", "2020-01-01T10:00:00Z", "1_000", "0b11", "0O17", "0X1F"),
        *("1e", "e5", ".", "-", "+", "1.2.3", "0o8", "0x", "inf", "nan", ".infinity", "="),
    ],
)
def test_every_other_plain_word_is_text_as_a_value_and_as_a_key(word: str) -> None:
    assert read_yaml(f"{word}: a\nb: [{word}]") == {word: "a", "b": [word]}


def test_no_number_is_a_number() -> None:
    assert math.isnan(read_yaml("a: .nan")["a"])


def test_quotes_and_tags_decide() -> None:
    text = "a: '1e-4'\nb: \"true\"\nc: !!str 010\nd: !!float 3\ne: !!int '0o7'"
    assert read_yaml(text) == {"a": "1e-4", "b": "true", "c": "010", "d": 3.0, "e": 7}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is given twice"),
        ("a: {on: 1, 'on': 2}", "line 1: the key 'on' is given twice"),
        ("a: {1: x, 01: y}", "the key '01' is given twice"),
        ("a: {<<: {b: 1, b: 2}}", "the key 'b' is given twice"),
        ("? [a]\n: 1", "line 1: a key is a list or a table"),
        ("a: !!timestamp 2020-01-01", "could not determine a constructor"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: !!bool yes", "line 1: 'yes' is no bool of YAML 1.2"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: &x [*x]", "line 1: an alias within what it repeats"),
        ("[" * 5000, "levels"),
        ("a: " + "[" * 200 + "]" * 200, "line 1: more than 100 levels"),
        ("#" * (MAX_CHARACTERS + 1), "characters; 4,194,304 are the most"),
        ("a: " + "9" * 5000, "4300 digits"),
    ],
)
def test_what_is_refused_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace(".", r"\.")):
        read_yaml(text)


def bomb(entry: str) -> str:
    """Twelve levels; each repeats the one before nine times."""
    names = [f"level_{i}" for i in range(12)]
    lines = [f"{names[0]}: &{names[0]} {{x: 1}}"]
    for before, name in pairwise(names):
        lines.append(f"{name}: &{name} " + entry.format(", ".join([f"*{before}"] * 9)))
    return "\n".join(lines)


@pytest.mark.parametrize("entry", ["[{}]", "{{<<: [{}]}}"])
def test_an_alias_bomb_is_refused_before_it_takes_memory(entry: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="more than 100,000 values, with those that aliases"):
        read_yaml(bomb(entry))
    assert time.process_time() - began < 5.0


def test_aliases_and_merges_within_the_limits_are_read() -> None:
    text = "d: &d {x: 1}\na: &a {<<: *d, x: 2}\nb: {<<: *a, y: 3}\nc: *a"
    expected = {"d": {"x": 1}, "a": {"x": 2}, "b": {"x": 2, "y": 3}, "c": {"x": 2}}
    assert read_yaml(text) == expected


def test_a_number_with_a_leading_zero_may_be_refused() -> None:
    with pytest.raises(ValueError, match=r"line 2: 0644 begins with a zero.*write 0o644"):
        read_yaml("a: 0o644\nb: 0644", as_old=True)
    assert read_yaml("a: [0, 0o644, 0.5]", as_old=True) == {"a": [0, 420, 0.5]}


@pytest.mark.parametrize(
    "word",
    ["yes", "No", "ON", "off", "y", "N", "1_000", "-1_0.5", "0b11"],
)
def test_a_word_that_yaml_1_1_reads_as_another_value_may_be_refused(word: str) -> None:
    assert read_yaml(f"a: {word}") == {"a": word}
    assert read_yaml(f"a: ['{word}', \"{word}\", {word}s, a_1]", as_old=True)
    for text in (f"a: {word}", f"{word}: 1", f"a: [{{b: {word}}}]"):
        with pytest.raises(ValueError, match=f"line 2: {word} is a truth value or a number"):
            read_yaml("b: [true, 1, 0.5, ~, text, 1:30]\n" + text, as_old=True)


def spec(folder: Path, text: str) -> Any:
    path = folder / "job.yaml"
    path.write_text(text)
    return parse_job_spec(read_spec_file(path))


def test_a_spec_file_has_the_numbers_and_words_that_people_write(tmp_path: Path) -> None:
    text = "optimizer: {lr: 1e-4, eps: 1e-8}\nretry:\n  on: [hang]\ntags: [no, 2020-01-01]"
    read = spec(tmp_path, text)
    assert (read.optimizer.lr, read.optimizer.eps) == (1e-4, 1e-8)
    assert [str(reason.value) for reason in read.retry.on] == ["hang"]
    assert read.tags == ("no", "2020-01-01")
