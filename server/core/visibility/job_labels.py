"""Names of jobs inside stored texts, which a response shows only to those who see the job.

A text such as the reason why a job waits may name jobs of other projects. The text holds a label in
place of each name, and the response renders the labels for its caller (docs/members.md).
"""

from __future__ import annotations

import re

from server.core.visibility.scope import HIDDEN_JOB, NO_SCOPE, Scope

BEGIN, END = "\uf8f1", "\uf8f2"
"""Characters around a label, from Unicode's private use area, so that no other text has them."""
_BEGIN = BEGIN.encode()
_LABEL = re.compile(
    rb"%b(?:([A-Za-z0-9._-]+)/([A-Za-z0-9._-]+)%b|[A-Za-z0-9._/-]*)" % (_BEGIN, END.encode())
)
"""A label, or the part that is left of a label in a text that was cut."""


def label(project: str, name: str) -> str:
    """Return the label of a job: its name, which is rendered only for those who see the project."""
    return f"{BEGIN}{project}/{name}{END}"


def rendered(content: bytes, scope: Scope = NO_SCOPE) -> bytes:
    """Return JSON or text in UTF-8 with names in place of labels, as far as the caller sees them.

    Hidden names become `another project's job`. Without a scope, all names are hidden.
    """
    if _BEGIN not in content:  # also for the cost: most responses have no label
        return content

    def shown(match: re.Match[bytes]) -> bytes:
        project, name = match[1], match[2]
        if project is not None and scope.sees(project.decode()):
            return name
        return HIDDEN_JOB.encode()

    return _LABEL.sub(shown, content)


def plain(text: str, scope: Scope) -> str:
    """Return a text with rendered labels."""
    return rendered(text.encode(), scope).decode()
