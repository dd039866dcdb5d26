"""Reads the words of a definition from a syntax tree of Python or TypeScript."""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPESCRIPT = """
const ts = require("typescript");
const source = ts.createSourceFile("f.tsx", require("fs").readFileSync(process.argv[1], "utf8"),
  ts.ScriptTarget.Latest, true, ts.ScriptKind.TSX);
const found = {};
const words = (node, into) => {
  if (ts.isIdentifier(node) || ts.isPrivateIdentifier(node)) into.add(node.text);
  else if (ts.isStringLiteralLike(node) || node.kind === ts.SyntaxKind.TemplateHead
    || node.kind === ts.SyntaxKind.TemplateMiddle || node.kind === ts.SyntaxKind.TemplateTail)
    into.add(node.text);
  ts.forEachChild(node, (child) => { words(child, into); }); // a value would end the visit
  return into;
};
const define = (name, node, outer) => {
  const full = outer ? `${outer}.${name}` : name;
  found[full] = [...words(node, new Set())];
  if (ts.isClassDeclaration(node))
    for (const member of node.members)
      if (member.name) define(member.name.getText(), member, full);
};
ts.forEachChild(source, (node) => {
  if ((ts.isFunctionDeclaration(node) || ts.isClassDeclaration(node)) && node.name)
    define(node.name.text, node, "");
  else if (ts.isVariableStatement(node))
    for (const each of node.declarationList.declarations) define(each.name.getText(), each, "");
  else if (ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node))
    define(node.name.text, node, "");
});
console.log(JSON.stringify(found));
"""


@cache
def definitions(file: str) -> dict[str, frozenset[str]]:
    """Return the words of each definition in a file: identifiers, attributes and string literals.

    Keys are `function`, `Class` and `Class.method`.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    path = ROOT / file
    if path.suffix == ".py":
        return _python(ast.parse(path.read_text(encoding="utf-8")))
    return _typescript(path)


def _python(tree: ast.Module) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}

    def visit(body: list[ast.stmt], outer: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{node.name}" if outer else node.name
                found[name] = frozenset(_words(node))
                if isinstance(node, ast.ClassDef):
                    visit(node.body, name)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not outer:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = frozenset(_words(node))

    visit(tree.body, "")
    return found


def _words(node: ast.AST) -> set[str]:
    words: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=word) | ast.arg(arg=word) | ast.Attribute(attr=word):
                words.add(word)
            case ast.keyword(arg=str(word)) | ast.Constant(value=str(word)):
                words.add(word)
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                words.add(word)
            case _:
                pass
    return words


def _typescript(path: Path) -> dict[str, frozenset[str]]:
    command = ["node", "-e", TYPESCRIPT, str(path)]
    ran = subprocess.run(command, cwd=ROOT / "web", check=True, capture_output=True, text=True)
    return {name: frozenset(words) for name, words in json.loads(ran.stdout).items()}
