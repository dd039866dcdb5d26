"""Masks for secrets: values of variables, credentials in URLs, and secrets in outputs."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "********"
"""Text that replaces a value that may be a secret."""
MIN_MASKED = 8
"""Minimum length of a secret's value, in bytes, that outputs of a job show masked."""
MAX_LINE_FORMS = 256
"""Maximum number of byte strings for which a mask searches because of the lines of values. Each
costs 0.3 ms per MiB of output. The forms of whole values are not limited."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_JSON_PART = re.compile(
    rb'(?P<name>"kind"\s*:\s*)?"(?P<string>(?:[^"\\\n]++|\\[^\n])*+)(?P<end>"?)(?P<colon>\s*:)?+'
    rb'|[^"]{%d,}' % MIN_MASKED
)
"""A string of JSON, or bytes between strings. The string is a field name if `colon` follows, and
the kind of an event after `name`. A string without its end, such as in a torn line, ends with the
line. Possessive repeats keep the search linear."""
_NUMBER = re.compile(rb"[-+.0-9eE]+")
_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/@\s\"'\\]{1,500}@")


def has_credentials(text: str) -> bool:
    """Return whether a text contains a URL with credentials."""
    return "://" in text and _CREDENTIALS.search(text) is not None


def hide_credentials(text: str) -> str:
    """Return a text with masked credentials in all URLs, such as `s3://********@bucket`."""
    return _CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text) if "://" in text else text


def is_masked(text: str) -> bool:
    """Return whether a text is a mask, or a URL with masked credentials."""
    return text == MASK or f"://{MASK}@" in text


class OutputMask:
    """Replaces secrets in what a job writes, byte by byte, so that all offsets stay.

    The values are known, so a search for them suffices. Each of these forms of a value is masked:
    the value itself, each of its lines, and both as JSON, as a Python literal, as base64 at each of
    the three alignments, and percent-encoded. Forms with fewer than `MIN_MASKED` bytes are not
    masked. Of the forms of lines, `MAX_LINE_FORMS` are masked: first the lines themselves.
    """

    def __init__(self, values: Iterable[str]) -> None:
        """Compute the forms of the values."""
        texts = dict.fromkeys(values)
        lines = dict.fromkeys(line.strip() for text in texts for line in text.splitlines())
        forms = dict.fromkeys(form for text in texts for form in _forms(text))
        of_lines = dict.fromkeys(
            [*(line.encode() for line in lines), *(form for line in lines for form in _forms(line))]
        )
        more = [form for form in of_lines if len(form) >= MIN_MASKED and form not in forms]
        self._forms = (*forms, *more[:MAX_LINE_FORMS])
        self._words = [form for form in self._forms if not _NUMBER.fullmatch(form)]
        self._edges = {edge for form in self._forms for edge in (_first(form), _last(form))}
        self._periods: dict[bytes, int] = {}
        self.left_out = len(more[MAX_LINE_FORMS:])
        """Number of forms of lines that are not masked."""

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._forms)

    @property
    def longest(self) -> int:
        """Length of the longest form, in bytes."""
        return max(map(len, self._forms), default=0)

    def masked(self, content: bytes) -> bytes:
        """Return the content with `*` in place of each byte of a secret."""
        return _with_stars(content, self._matches(content))

    def text(self, text: str) -> str:
        """Return a text with masked secrets.

        The text may be cut, so from `MIN_MASKED` bytes on, the beginning of a secret at its end is
        masked too, and the end of a secret at its beginning.
        """
        content = text.encode("utf-8", "surrogatepass")
        if not self._may_occur(content):
            return text
        masked = self._masked_text(content)
        return text if masked == content else masked.decode("utf-8", "replace")

    def lines(self, content: bytes, *, words: Collection[str] = ()) -> bytes:
        """Return lines of JSON with masked secrets, each as long as before.

        A string is decoded before the search, because JSON has several spellings of a character and
        the server stores the decoded text. Spaces follow a string that became shorter. A string may
        be cut, as in `text`. In a damaged line, bytes between strings are masked too.

        Args:
            content: the lines.
            words: field names and kinds of events that stay, so that the lines stay readable.
                Numbers stay too.
        """
        if not self:
            return content
        searched = (*self._edges, b"\\")  # escapes may hide an edge
        places = sorted(at for part in searched for at in _places(content, part))
        if not places:
            return content

        def masked(match: re.Match[bytes]) -> bytes:
            """Most strings have no secret, so a search for all forms in each would be slow."""
            start, end = match.span()
            at = bisect_left(places, start)
            if at == len(places) or places[at] >= end:
                return match[0]
            return self._json_part(match, words)

        return _JSON_PART.sub(masked, content)

    def prefix(self, content: bytes, *, is_end: bool, before: bytes = b"") -> bytes:
        """Return the masked beginning of the content that later bytes cannot change.

        A secret may continue after the content. The bytes that may begin one are then left out; the
        next content must begin with them. At most `longest` bytes are left out.

        Args:
            content: the next bytes.
            is_end: whether no bytes follow. Then none are left out, and the beginning of a secret
                is masked from `MIN_MASKED` bytes on.
            before: the unmasked bytes before the content, from `longest` bytes on as many as there
                are. A secret may have begun there.
        """
        size = len(content)
        end = size - max((_open_bytes(content, form) for form in self._forms), default=0)
        behind = len(before)
        matches = [
            (max(start - behind, 0), stop - behind)
            for start, stop in self._matches(before + content)
            if stop > behind
        ]
        if not is_end:
            return _with_stars(content, matches)[:end]
        cut_off = [(end, size)] if size - end >= MIN_MASKED else []
        return _with_stars(content, [*matches, *cut_off])

    def _matches(self, content: bytes) -> list[tuple[int, int]]:
        return [span for form in self._forms for span in self._spans(content, form)]

    def _spans(self, content: bytes, form: bytes) -> Iterator[tuple[int, int]]:
        """Yield what the occurrences of a form cover, in time linear in the content.

        The next occurrence of a form with a short period may begin at each byte of the last one, so
        a run of them is followed by its period. After a run, no occurrence begins within about half
        of a form (Fine and Wilf's theorem).
        """
        size, start = len(form), content.find(form)
        while start >= 0:
            period = self._periods.get(form) or self._periods.setdefault(form, _period(form))
            repeated, stop = form[size - period :], start + size
            while content.startswith(repeated, stop):
                stop += period
            yield start, stop
            start = content.find(form, stop - size + 1)

    def _may_occur(self, content: bytes) -> bool:
        """Return whether a secret, or at least `MIN_MASKED` bytes of its ends, may occur."""
        return any(edge in content for edge in self._edges)

    def _masked_text(self, content: bytes) -> bytes:
        size = len(content)
        opened = max((_open_bytes(content, form) for form in self._forms), default=0)
        closed = max((_closed_bytes(content, form) for form in self._forms), default=0)
        cut_off = [(0, closed)] if closed >= MIN_MASKED else []
        cut_off += [(size - opened, size)] if opened >= MIN_MASKED else []
        return _with_stars(content, [*self._matches(content), *cut_off])

    def _json_part(self, match: re.Match[bytes], words: Collection[str]) -> bytes:
        string = match["string"]
        if string is None:
            spans = [span for form in self._words for span in self._spans(match[0], form)]
            return _with_stars(match[0], spans)
        before, colon = match["name"] or b"", match["colon"] or b""
        try:
            text = json.loads(b'"%b%b' % (string, match["end"]))
        except ValueError:  # a damaged line
            return b'%b"%b%b%b' % (before, self._masked_text(string), match["end"], colon)
        if ((before or colon) and text in words) or (masked := self.text(text)) == text:
            return match[0]
        shorter = json.dumps(masked, ensure_ascii=False).encode()
        if (left := len(string) + 2 - len(shorter)) < 0:
            shorter, left = b'"%b"' % (b"*" * len(string)), 0
        return b"%b%b%b%b" % (before, shorter, b" " * left, colon)


NO_MASK = OutputMask(())
"""A mask that changes nothing."""


def _forms(text: str) -> Iterator[bytes]:
    """Yield the forms of a text that have at least `MIN_MASKED` bytes."""
    content = text.encode()
    if len(content) < MIN_MASKED:
        return
    yield content
    yield json.dumps(text)[1:-1].encode()
    yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    for literal in (repr(text), ascii(text), repr(content)[1:]):
        yield literal[1:-1].encode()
    for encoded in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield encoded.encode()
        yield _ESCAPE.sub(lambda match: match[0].lower(), encoded).encode()
    for skipped in range(3):  # the value may begin at any place of a group of three bytes
        grouped = b64encode(bytes(skipped) + content)
        # Characters that other bytes share are left out.
        first, last = -(-skipped * 4 // 3), (skipped + len(content)) * 4 // 3
        if last - first >= MIN_MASKED:
            yield grouped[first:last]
            yield grouped[first:last].translate(_URL_SAFE)


def _first(form: bytes) -> bytes:
    return form[:MIN_MASKED]


def _last(form: bytes) -> bytes:
    return form[-MIN_MASKED:]


def _places(content: bytes, part: bytes) -> Iterator[int]:
    """Yield the offset of each occurrence of a part, overlapping ones too."""
    at = content.find(part)
    while at >= 0:
        yield at
        at = content.find(part, at + 1)


def _period(form: bytes) -> int:
    """Return the smallest period: the distance at which the form may follow itself."""
    start = form.find(form[:1], 1)
    while start >= 0:
        if form.startswith(form[start:]):
            return start
        start = form.find(form[:1], start + 1)
    return len(form)


def _with_stars(content: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    changed = None
    for start, stop in spans:
        changed = bytearray(content) if changed is None else changed
        changed[start:stop] = b"*" * (stop - start)
    return content if changed is None else bytes(changed)


def _open_bytes(content: bytes, form: bytes) -> int:
    """Return the length of the longest end of the content that begins a form, but is shorter."""
    start = content.find(form[:1], max(len(content) - len(form) + 1, 0))
    while start >= 0:
        if form.startswith(content[start:]):
            return len(content) - start
        start = content.find(form[:1], start + 1)
    return 0


def _closed_bytes(content: bytes, form: bytes) -> int:
    """Return the length of the longest beginning of the content that ends a form, but is
    shorter."""
    last = form[-1:]
    stop = content.rfind(last, 0, len(form) - 1)
    while stop >= 0:
        if form.endswith(content[: stop + 1]):
            return stop + 1
        stop = content.rfind(last, 0, stop)
    return 0
