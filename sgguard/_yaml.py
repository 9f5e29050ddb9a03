"""Reading a policy's YAML: plain data, where each key stands, and nothing else.

PyYAML's safe loader is not strict enough for a file that changes a running server: it keeps
the last of two equal keys without a word, reads ``off`` and ``no`` as false, and follows
aliases to any size. So the text is composed to nodes, and those are checked and turned into
data here. Booleans, null and numbers are those of YAML 1.2's core schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import yaml

from sgguard._text import Mark

Path = tuple[str | int, ...]

MAX_DEPTH: Final = 16
MAX_NODES: Final = 20_000


@dataclass(frozen=True)
class Fault:
    """Something wrong with the text itself."""

    message: str
    path: Path = ()
    mark: Mark | None = None


@dataclass(frozen=True)
class Document:
    """What a text holds.

    Attributes:
        data: the plain data; ``None`` where the text could not be read at all.
        marks: where each key stands.
        faults: what is wrong with the text.
    """

    data: Any
    marks: dict[Path, Mark]
    faults: tuple[Fault, ...]


class _Refused(yaml.MarkedYAMLError):
    """A construct that a policy has no use for."""


def _refuse(message: str, mark: Any) -> _Refused:
    return _Refused(None, None, message, mark)


class _Loader(yaml.SafeLoader):
    """Composes nodes; no aliases, bounded depth and size, YAML 1.2's core schema."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refuse(
                "YAML aliases (*name) are not allowed; write the value out", event.start_mark
            )
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            raise _refuse(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if self._nodes > MAX_NODES:
            raise _refuse(f"more than {MAX_NODES} values", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_SCALARS: Final = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
)
_Loader.yaml_implicit_resolvers = {}  # YAML 1.1's: off, no, 0o7, 1:30, dates
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})\\Z"), _first)


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and len(text) < 20:
        return int(text)
    if kind in ("int", "float"):
        return float(text)
    return text


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


_KNOWN = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "map", "seq")
)


class _Builder:
    def __init__(self) -> None:
        self.marks: dict[Path, Mark] = {}
        self.faults: list[Fault] = []

    def _fault(self, node: yaml.Node, path: Path, message: str) -> None:
        self.faults.append(Fault(message, path, _mark(node.start_mark)))

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.marks.setdefault(path, _mark(node.start_mark))
        if node.tag not in _KNOWN:
            self._fault(node, path, f"the YAML tag {node.tag!r} is not allowed; remove it")
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            return _scalar(cast("yaml.ScalarNode", node))
        except ValueError:
            self._fault(node, path, f"{node.value!r} is not a {node.tag.rpartition(':')[2]}")
            return None

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        seen: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            # An unquoted `1` or `null` as a key is meant as the text that stands there.
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, path, "a key must be plain text")
                continue
            key = str(key_node.value)
            mark = _mark(key_node.start_mark)
            if key in seen:
                self.faults.append(
                    Fault(
                        f"the key {key!r} is given twice, first in line {seen[key].line}; "
                        "remove one",
                        (*path, key),
                        mark,
                    )
                )
                continue
            seen[key] = mark
            at = (*path, key)
            self.marks[at] = mark
            yield key, self.build(value_node, at)


def _character(found: Any) -> str:
    return repr(chr(found) if isinstance(found, int) else found)


def parse(text: str) -> Document:
    """Read YAML text. Never raises for what the text holds."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not readable as YAML"
        if "'\\t'" in problem:
            problem += "; indent with spaces"
        return Document(None, {}, (Fault(problem, mark=_mark(at) if at else None),))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        return Document(
            None,
            {},
            (Fault(f"the character {_character(error.character)} is not allowed", mark=mark),),
        )
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        return Document(None, {}, (Fault("the file is empty; it must at least say `version: 1`"),))
    builder = _Builder()
    data = builder.build(node, ())
    return Document(data, builder.marks, tuple(builder.faults))
