"""Masks of secrets: every form of a value, split at any place, with all offsets kept."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.base.redaction import MAX_LINE_FORMS, MIN_MASKED, OutputMask

VALUE = "p@ss word+/€\n-----KEY-----\nab\n"
KEY = b"-----KEY-----"


@pytest.mark.parametrize(
    "form",
    [
        VALUE.encode(),
        KEY,
        json.dumps(VALUE)[1:-1].encode(),
        json.dumps(VALUE, ensure_ascii=False)[1:-1].encode(),
        quote(VALUE, safe="").encode(),
        quote_plus(VALUE).encode(),
        quote(VALUE).encode(),
        re.sub("%..", lambda escape: escape[0].lower(), quote(VALUE, safe="")).encode(),
        repr(VALUE)[1:-1].encode(),
        base64.b64encode(VALUE.encode()),
        base64.urlsafe_b64encode(VALUE.encode()),
    ],
)
def test_each_form_of_a_value_is_masked(form: bytes) -> None:
    content = b"before " + form + b" after"
    masked = OutputMask([VALUE]).masked(content)
    assert len(masked) == len(content)
    assert masked.startswith(b"before *")
    assert masked.endswith((b"* after", b"= after", b"\n after", b"K after", b"o after"))
    assert KEY not in masked
    assert form[4:-4] not in masked


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_base64_is_masked_at_each_alignment(before: str) -> None:
    """As in the header `Authorization: Basic`, of user and password."""
    value = "correct horse battery"
    content = base64.b64encode(f"{before}:{value}:x".encode())
    masked = OutputMask([value]).masked(content)
    assert masked.count(b"*") >= len(value) * 4 // 3 - 1


def test_short_forms_stay() -> None:
    mask = OutputMask(["1234567", "", "abc\nde"])
    assert not mask
    assert mask.masked(b"1234567 abc\nde") == b"1234567 abc\nde"
    assert OutputMask(["12345678"]).masked(b"x12345678") == b"x********"


def test_overlapping_values_are_masked_whole() -> None:
    mask = OutputMask(["abcdefgh", "efghijkl"])
    assert mask.masked(b"-abcdefghijkl-") == b"-************-"
    assert OutputMask(["abababab"]).masked(b"ababababab") == b"**********"


@given(
    values=st.lists(st.text(alphabet="ab\n", min_size=8, max_size=20), max_size=3),
    content=st.text(alphabet="ab\n", max_size=120),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40),
)
def test_parts_are_masked_like_the_whole(values: list[str], content: str, sizes: list[int]) -> None:
    """Whichever bytes have arrived when a part is sent, and however long it may be."""
    mask, written = OutputMask(values), content.encode()
    sent, arrived, turn = b"", 0, 0
    while len(sent) < len(written):
        arrived = min(arrived + sizes[turn % len(sizes)], len(written))
        turn += 1
        before = written[max(len(sent) - mask.longest, 0) : len(sent)]
        part = mask.prefix(written[len(sent) : arrived], is_end=False, before=before)
        sent += part
        if arrived == len(written) and not part:
            break
    whole = mask.masked(written)
    assert sent == whole[: len(sent)]
    rest = written[len(sent) :]
    assert len(rest) < 21
    assert len(sent + mask.prefix(rest, is_end=True)) == len(written)


def test_a_beginning_at_the_end_of_a_log_is_masked() -> None:
    mask = OutputMask(["correct horse battery"])
    assert mask.prefix(b"x correct", is_end=False) == b"x "
    assert mask.prefix(b"x correct", is_end=True) == b"x correct"
    assert mask.prefix(b"x correct h", is_end=True) == b"x *********"


def test_lines_stay_readable() -> None:
    """Numbers, names of fields and kinds of events are no place of a secret."""
    mask = OutputMask(["12345678", "checkpoint", 'quo"te\\d value'])
    record = {
        "kind": "checkpoint_committed",
        "checkpoint": 12345678.5,
        "message": 'the quo"te\\d value and checkpoint "kind": "checkpoint"',
        "values": {"loss/12345678": 1.0},
    }
    line = json.dumps(record).encode() + b"\n"
    words = {"kind", "checkpoint", "checkpoint_committed"}
    masked = mask.lines(line + b'{"other": 1}\n', words=words)
    assert len(masked) == len(line) + 13
    found = json.loads(masked.splitlines()[0])
    assert found["kind"] == "checkpoint_committed"
    assert found["checkpoint"] == 12345678.5
    assert found["values"] == {"loss/********": 1.0}
    assert found["message"].startswith("the **************")
    assert "checkpoint" not in found["message"]


ACCOUNT = {
    "type": "service_account",
    "private_key": '-----BEGIN KEY-----\nAbC/d+e"f\\g=\n-----END-----\n',
}


@pytest.mark.parametrize(
    "spelled",
    [
        lambda text: json.dumps(text),
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(repr(text)),
        lambda text: json.dumps(json.dumps({"v": text})),
        lambda text: json.dumps(repr(text.encode())),
        lambda text: json.dumps(ascii(text)),
        lambda text: json.dumps(text).replace("/", "\\/"),
        lambda text: json.dumps(text).replace("<", "\\u003c").replace("&", "\\u0026"),
        lambda text: json.dumps(text).replace("\\u00e9", "\\u00E9"),
        lambda text: '"{}"'.format("".join(f"\\u{ord(each):04x}" for each in text)),
    ],
)
@pytest.mark.parametrize(
    "value",
    [json.dumps(ACCOUNT), ACCOUNT["private_key"], "ab/cd+efgh<&>12345678", "clé secrète éé/<&"],
)
def test_each_spelling_of_a_string_is_masked(value: str, spelled: Callable[[str], str]) -> None:
    """Programs of other languages escape other characters, and the server stores decoded texts."""
    mask, text = OutputMask([value]), f"it is {value} here"
    line = b'{"message": %b, "step": 1e5, "%b": [1]}\n' % (spelled(text).encode(), b"x" * 9)
    masked = mask.lines(line)
    assert len(masked) == len(line)
    assert masked.endswith(b', "step": 1e5, "xxxxxxxxx": [1]}\n')
    found = json.loads(masked)["message"]
    assert "here" in found
    for part in (value, *value.splitlines()):
        assert part not in found or len(part) < MIN_MASKED
        if len(part) >= MIN_MASKED:
            for form in (part, repr(part)[1:-1], json.dumps(part)[1:-1]):
                assert form not in found
    assert "*" * MIN_MASKED in found


@settings(deadline=None)
@given(
    st.text(min_size=MIN_MASKED, max_size=30),
    st.text(max_size=20),
    st.booleans(),
    st.integers(0, 9),
)
def test_masked_lines_stay_json(value: str, around: str, is_ascii: bool, start: int) -> None:
    """Also if an escape ends within a secret, or a secret within an escape."""
    value, around = (each.encode("utf-8", "replace").decode() for each in (value, around))
    mask = OutputMask([value])
    text = around + value[start:] + value + around + value[: start + MIN_MASKED]
    line = json.dumps({text: [text, 1.5]}, ensure_ascii=is_ascii).encode() + b"\n"
    masked = mask.lines(line)
    assert len(masked) == len(line)
    ((name, (found, number)),) = json.loads(masked).items()
    assert number == 1.5
    assert name == found == mask.text(text)


def test_names_that_a_job_chooses_are_masked() -> None:
    mask = OutputMask(["correcthorse", "secret_password"])
    line = b'{"values":{"correcthorse":1},"kind":"secret_password","correcthorse" : 2}\n'
    expected = line.replace(b"correcthorse", b"*" * 12).replace(b"secret_password", b"*" * 15)
    assert mask.lines(line) == expected
    assert mask.lines(b'{"kind":5,"kind":"a","x":"correcthorse"}\n').count(b"*") == 12


def test_texts_are_masked() -> None:
    mask = OutputMask(["schlüsselwort"])
    assert mask.text("ein schlüsselwort!") == f"ein {'*' * 14}!"
    assert OutputMask(["x" * 8]).text("lone \ud800 surrogate") == "lone \ud800 surrogate"


@pytest.mark.parametrize("value", ["=" * 8, "ab" * 40, "=" * 65_536, "a" * 65_535 + "b"])
def test_a_periodic_value_neither_stalls_nor_slows(value: str) -> None:
    """In a run of it, an occurrence begins at each byte, also at the end of each part."""
    mask, content = OutputMask([value]), value[:2].encode() * 2**19
    began = time.perf_counter()
    sent = mask.prefix(content, is_end=False)
    assert len(content) - len(sent) < len(value)
    rest, before = content[len(sent) :], content[len(sent) - mask.longest : len(sent)]
    whole = mask.masked(content)
    assert whole.startswith(sent + mask.prefix(rest, is_end=False, before=before))
    assert time.perf_counter() - began < 4


def test_ends_of_a_cut_text_are_masked() -> None:
    """A log, a traceback or a message may be cut within a secret."""
    mask = OutputMask(["correct horse battery"])
    assert mask.text("e battery x correct h") == "********* x *********"
    assert mask.text("battery x correct") == "battery x correct"
    line = b'{"message":"e battery x correct h","e battery x":1}'
    assert mask.lines(line) == b'{"message":"********* x *********","********* x":1}'


def test_whole_values_are_masked_before_the_lines_of_others() -> None:
    keys = ["\n".join(f"-----line {n:03} of key {k}-----" for n in range(60)) for k in "ab"]
    mask = OutputMask([*keys, "hf_AbCdEfGh"])
    assert mask.left_out > 0
    for text in ("hf_AbCdEfGh", quote(keys[0]), json.dumps(keys[1])[1:-1], keys[0], keys[1]):
        assert set(mask.masked(text.encode())) == {ord("*")}, text
    for line in keys[1].splitlines():
        assert set(mask.masked(line.encode())) == {ord("*")}, "lines come before their forms"


def test_the_number_of_forms_of_lines_is_bounded() -> None:
    """And a search of a MiB for all of them takes less than a second."""
    value = "\n".join(f"line number {n:05}" for n in range(2000))
    mask = OutputMask([value])
    assert MAX_LINE_FORMS < len(mask._forms) < MAX_LINE_FORMS + 20
    content = b"step 12 loss 3.4567 line number tokens 1,234\n" * 23_000
    began = time.perf_counter()
    mask.prefix(content, is_end=False)
    assert time.perf_counter() - began < 2


def test_a_torn_line_uncovers_no_value_after_it() -> None:
    """A process that died within a string leaves an odd number of quotation marks."""
    mask = OutputMask(["correct horse"])
    line = b'{"message":"my correct horse"}\n'
    masked = b'{"message":"my *************"}\n'
    for torn in (b'{"message": "torn\n', b'{"message": "torn\\\n', b'{"correct horse, x'):
        assert mask.lines(torn + line + line).endswith(masked)
        assert b"correct horse" not in mask.lines(torn + line + line)
    assert mask.lines(b'{"torn{"a":"correct horse"}\n').count(b"*") == len("correct horse")


def test_a_line_of_escapes_without_an_end_costs_linear_time() -> None:
    """Otherwise a job could stall its supervisor, which then follows no order."""
    content = b'correct horse "' + b'\\"' * 500_000 + b"\n"
    began = time.perf_counter()
    masked = OutputMask(["correct horse"]).lines(content)
    assert time.perf_counter() - began < 4
    assert masked == content.replace(b"correct horse", b"*" * 13)


def test_strings_without_a_secret_cost_no_search_for_each_form() -> None:
    mask = OutputMask([f"{n:03} of the values of a job" for n in range(40)])
    line = b'{"step":1,"time":1764584626.1,"values":{"train/loss":0.5,"train/lr":0.1}}\n'
    content = line * 2**13 + b'{"message":"007 of the values of a job"}\n'
    began = time.process_time()
    masked = mask.lines(content)
    assert time.process_time() - began < 0.5
    assert masked == line * 2**13 + b'{"message":"%b"}\n' % (b"*" * 26)
