"""One pattern for many strings."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any


def any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Finds the first of `texts`, at one place the longest. Strings that begin alike are looked at once for what they
    have in common: a vocabulary has thousands of `<unused…>`, and a text of code thousands of `<`."""
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for one in text:
            node = node.setdefault(one, {})
        node[""] = {}
    root.pop("", None)
    return re.compile(_pattern(root) if root else r"(?!)")


def _pattern(node: dict[str, Any]) -> str:
    leaves = [one for one, inner in node.items() if one and inner.keys() == {""}]
    branches = []
    for one, inner in node.items():
        if not one or inner.keys() == {""}:
            continue
        run = one
        while len(inner) == 1 and "" not in inner:
            ((following, inner),) = inner.items()
            run += following
        branches.append(re.escape(run) + ("" if inner.keys() == {""} else _pattern(inner)))
    if len(leaves) > 1:
        branches.append(f"[{''.join(map(re.escape, sorted(leaves)))}]")
    else:
        branches += map(re.escape, leaves)
    if len(branches) == 1 and "" not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in node else ''}"
