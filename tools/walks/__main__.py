"""`python -m tools.walks [WALK]`: print each walk with its files and names, and verify every link.

A walk follows one thing through the code. `walks.toml` lists its hops in order; a hop is a
definition, with the name of the thing there. A hop changes the form of the thing, keeps the thing
for another reader, or passes it to another file. A constructor, a property and a function that only
chooses between two values and returns to a hop are not hops. A file counts once, however often the
walk returns to it; each spelling of a name counts, so a plural and its singular are two.

A link holds if one definition mentions the other, or if both mention the medium between them
(`via`): a file, a path of the API, a table, a message, an event, a field of a view.

Every walk omits transport: code that passes all messages of a kind to another process without
reading them. Examples are an HTTP client, the writer of records as files, the message queue from
sender to task, and the parser of a command line. An endpoint is a hop, because it decides who may
send what. `walks.toml` lists the omitted code above each walk.

A change of the code that moves the walk makes this program fail until the list is updated.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.walks.syntax import definitions

WALKS = Path(__file__).with_name("walks.toml")


@dataclass(frozen=True)
class Hop:
    """One definition in a walk."""

    file: str
    symbol: str
    name: str
    """Name of the thing in this definition."""
    via: str | None = None
    """Medium between this definition and the next; without a medium, one definition mentions the
    other."""


@dataclass(frozen=True)
class Walk:
    """The definitions through which one thing passes, with limits on files and names."""

    title: str
    most_files: int
    most_names: int | None
    hops: tuple[Hop, ...]

    @property
    def files(self) -> list[str]:
        """Files in the order of their first hop."""
        return list(dict.fromkeys(hop.file for hop in self.hops))

    @property
    def names(self) -> list[str]:
        """Names in the order of their first hop."""
        return list(dict.fromkeys(hop.name for hop in self.hops))


def read_walks(path: Path = WALKS) -> dict[str, Walk]:
    """Return every walk in the file, by its key."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        key: Walk(
            title=walk["title"],
            most_files=walk["most_files"],
            most_names=walk.get("most_names"),
            hops=tuple(_hop(text) for text in walk["hops"]),
        )
        for key, walk in listed.items()
    }


def _hop(text: str) -> Hop:
    """Parse `file::symbol name [> via]`."""
    place, _, via = text.partition(" > ")
    where, name = place.split(" ")
    file, _, symbol = where.partition("::")
    return Hop(file, symbol, name, via or None)


def broken_links(walk: Walk) -> list[str]:
    """Return the faults: missing definitions, missing names and broken links."""
    found = []
    for hop, following in zip(walk.hops, (*walk.hops[1:], None), strict=True):
        words = _words(hop)
        if words is None:
            found.append(f"{hop.file} defines no {hop.symbol}")
            continue
        if hop.name not in words and hop.name != hop.symbol.rpartition(".")[2]:
            found.append(f"{hop.file}::{hop.symbol} has no {hop.name}")
        if following is not None and (there := _words(following)) is not None:
            link = _broken(hop, following, words=words, there=there)
            found += [link] if link else []
    return found


def _words(hop: Hop) -> frozenset[str] | None:
    try:
        return definitions(hop.file).get(hop.symbol)
    except FileNotFoundError:
        return None


def _broken(
    hop: Hop, following: Hop, *, words: frozenset[str], there: frozenset[str]
) -> str | None:
    if hop.via is None:  # a value passes down as an argument, and up as a result
        if _mentions(words, following.symbol) or _mentions(there, hop.symbol):
            return None
        return f"neither {hop.symbol} nor {following.symbol} mentions the other one"
    sides = {hop.symbol: words, following.symbol: there}
    silent = [symbol for symbol, side in sides.items() if not any(hop.via in w for w in side)]
    return f"{', '.join(silent)}: no {hop.via!r}" if silent else None


def _mentions(words: frozenset[str], symbol: str) -> bool:
    parts = symbol.split(".")
    return parts[-1] in words or (len(parts) > 1 and parts[0] in words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a link is broken or a walk is too long."""
    walks = read_walks()
    parser = argparse.ArgumentParser(prog="python -m tools.walks", description=__doc__)
    parser.add_argument("walk", nargs="*", choices=[[], *walks], help="all of them when absent")
    failed = False
    for key in parser.parse_args(arguments).walk or walks:
        walk = walks[key]
        broken = broken_links(walk)
        _print(key, walk, broken)
        too_long = len(walk.files) > walk.most_files
        too_many = walk.most_names is not None and len(walk.names) > walk.most_names
        failed |= bool(broken) or too_long or too_many
    return int(failed)


def _print(key: str, walk: Walk, broken: Sequence[str]) -> None:
    names = f", {len(walk.names)} names" if walk.most_names is not None else ""
    most = f"{walk.most_files} files" + (f", {walk.most_names} names" if walk.most_names else "")
    lines = [f"{key}: {walk.title}", f"  {len(walk.files)} files{names}; at most {most}"]
    lines += [f"  {number:2} {file}" for number, file in enumerate(walk.files, 1)]
    if walk.most_names is not None:
        lines.append(f"  names: {', '.join(walk.names)}")
    lines += [f"  BROKEN: {link}" for link in broken]
    sys.stdout.write("\n".join(lines) + "\n\n")


if __name__ == "__main__":
    sys.exit(main())
