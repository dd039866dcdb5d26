"""Read the docstrings under the fields of a class from its source, on demand.

pydantic can read field docstrings too (`use_attribute_docstrings`), but it reads them whenever a
class is defined. That took a third of a program's start time.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any


class DescribedFields:
    """Base of models and records; it adds field docstrings to the JSON Schema as descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any, /) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docstrings(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings under annotated fields, by field name, including fields of base
    classes.

    Only base classes that derive from `DescribedFields` are read. A class without source, such as
    a parametrized class, only has the docstrings of its base classes.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, DescribedFields):
            found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the field docstrings of each class in a module, by qualified class name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, KeyError):  # the module is built in, or was created at run time
        return {}
    return dict(_of_classes(tree, ""))


def _of_classes(parent: ast.AST, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", dict(_of_fields(node))
            yield from _of_classes(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_classes(node, f"{prefix}{node.name}.<locals>.")
        else:
            yield from _of_classes(node, prefix)


def _of_fields(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(kind.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                yield name, inspect.cleandoc(docstring)
            case _:
                pass
