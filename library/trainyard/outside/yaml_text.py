"""Reads users' YAML: the core schema of YAML 1.2, unique keys, limited size.

PyYAML alone reads YAML 1.1, in which `1e-4` is text, `010` is 8, `on` is true, `no` is false and
`1:30` is 90 (https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import yaml

MAX_CHARACTERS = 4 * 1024**2
MAX_NODES = 100_000
"""Maximum number of values in a document; a value counts again for each alias to it."""
DEEPEST = 100
"""Maximum depth of nested lists and tables."""

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_FORMS = {
    "null": (r"~|null|Null|NULL|", ("~", "n", "N", "")),
    "bool": (r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        tuple("-+.0123456789"),
    ),
    "merge": (r"<<", ("<",)),
}
"""Pattern and possible first characters for each kind of plain word that is not text."""
_PATTERNS = {kind: re.compile(rf"(?:{form})\Z") for kind, (form, _) in _FORMS.items()}
_OLD_OCTAL = re.compile(r"[-+]?0[0-9]+\Z")
_OLD_WORD = re.compile(
    r"(?:y|Y|n|N|(?:yes|no|on|off)|(?:Yes|No|On|Off)|(?:YES|NO|ON|OFF)"
    r"|[-+]?0b[01_]+|[-+]?(?=[0-9_.]*_)[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?)\Z"
)
"""Words that are text in YAML 1.2, but a boolean or a number in YAML 1.1, which Kubernetes
reads."""


def read_yaml(text: str, *, as_old: bool = False) -> Any:
    """Return the YAML document in a text; None for an empty text.

    Args:
        text: one YAML document.
        as_old: whether to reject plain words that have another value in YAML 1.1. For example,
            `yes` is text in YAML 1.2 and true in YAML 1.1, and `010` is 10 in YAML 1.2 and 8 in
            YAML 1.1.

    Raises:
        ValueError: the text is too long or not YAML, a key occurs twice in one table or is not a
            word, a tag is unknown, a word is illegal because of `as_old`, or the document with
            expanded aliases has too many values or is nested too deeply.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text):,} characters; {MAX_CHARACTERS:,} are the most")
    loader = _Loader(text, as_old=as_old)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(f"lists and tables in each other at more than {DEEPEST} levels") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with the core schema of YAML 1.2 in place of its own schema."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def __init__(self, text: str, *, as_old: bool) -> None:
        super().__init__(text)
        self._as_old = as_old
        self._sizes: dict[yaml.Node, int] = {}

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the value of a document after a check of the limits."""
        self._check(node, 0)
        return super().construct_document(node)

    def _check(self, node: yaml.Node, level: int) -> int:
        """Return the number of values in a node with expanded aliases, without expanding them.

        A node with aliases is counted once, and its count is added again for each alias.
        """
        if node in self._sizes:
            if self._sizes[node] == 0:
                raise ValueError(f"{_line(node)}: an alias within what it repeats")
            return self._sizes[node]
        if level > DEEPEST:
            raise ValueError(f"{_line(node)}: more than {DEEPEST} levels of lists and tables")
        self._sizes[node] = 0  # until the node is counted
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        size = 1 + sum(self._check(child, level + 1) for child in _children(node))
        if size > MAX_NODES:
            raise ValueError(
                f"{_line(node)}: more than {MAX_NODES:,} values, with those that aliases repeat"
            )
        self._sizes[node] = size
        return size

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"{_line(key)}: a key is a list or a table; it must be a word")
            if key.tag == _MERGE:
                continue
            name = self.construct_object(key)
            if name in seen:
                raise ValueError(f"{_line(key)}: the key {key.value!r} is given twice in one table")
            seen.add(name)

    def construct_yaml_bool(self, node: yaml.ScalarNode) -> bool:
        """Return a boolean; an explicit tag is checked too."""
        return self._word(node, "bool").lower() == "true"

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer."""
        word = self._word(node, "int")
        if self._as_old and _OLD_OCTAL.match(word):
            raise ValueError(
                f"{_line(node)}: {word} begins with a zero, which is octal for YAML 1.1 and decimal"
                f" for YAML 1.2; write 0o{word.lstrip('-+0') or '0'} or a decimal number"
            )
        for prefix, base in (("0o", 8), ("0x", 16)):
            if word.startswith(prefix):
                return int(word, base)
        return int(word)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Return a float."""
        word = self._word(node, "float").lower()
        if word.endswith(".inf"):
            return -math.inf if word.startswith("-") else math.inf
        return math.nan if word == ".nan" else float(word)

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        """Return a string."""
        word = str(self.construct_scalar(node))
        if self._as_old and node.style is None and _OLD_WORD.match(word):
            raise ValueError(
                f"{_line(node)}: {word} is a truth value or a number for YAML 1.1 and text for YAML"
                f" 1.2; write true, false or a decimal number, or the text in quotes: '{word}'"
            )
        return word

    def construct_yaml_null(self, node: yaml.ScalarNode) -> None:
        """Return None."""
        self._word(node, "null")

    def _word(self, node: yaml.ScalarNode, kind: str) -> str:
        word = str(self.construct_scalar(node))
        if not _PATTERNS[kind].match(word):
            raise ValueError(f"{_line(node)}: {word!r} is no {kind} of YAML 1.2")
        return word


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


for _kind, (_, _first) in _FORMS.items():
    _Loader.add_implicit_resolver(_TAG + _kind, _PATTERNS[_kind], list(_first))
for _kind in ("null", "bool", "int", "float", "str", "seq", "map"):
    _Loader.add_constructor(_TAG + _kind, getattr(_Loader, f"construct_yaml_{_kind}"))
_Loader.add_constructor(None, _Loader.construct_undefined)  # type: ignore[type-var]
