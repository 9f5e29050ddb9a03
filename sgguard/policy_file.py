"""Reading a policy, and everything that is wrong with one, each with its place."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from sgguard import _yaml
from sgguard._text import Mark, read_text
from sgguard.catalogue import BY_ID, UNSET
from sgguard.errors import InvalidPolicyError, Problem
from sgguard.guard import Guard
from sgguard.policy import (
    NEEDS_VALUE,
    Condition,
    Defaults,
    PointPolicy,
    Policy,
    Reload,
    Steps,
    TelemetryPolicy,
    known_point,
)
from sgguard.repair import canonical
from sgguard.values import show

Wrong = list[tuple[_yaml.Path, str]]


def closest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known word spelt most alike, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


@dataclass(frozen=True)
class Source:
    """A policy and where it came from.

    Attributes:
        policy: the policy.
        name: the file, or what else it came from; named in errors.
        marks: where each key stands, if it came from a text.
        path: the file to watch, if it came from one.
    """

    policy: Policy
    name: str = "python"
    marks: Mapping[_yaml.Path, Mark] = field(default_factory=dict)
    path: str | None = None

    def error(self, wrong: Wrong) -> InvalidPolicyError:
        """An error for things that are wrong with this policy, each with its place."""
        return _error(self.name, self.marks, wrong)


def _error(name: str, marks: Mapping[_yaml.Path, Mark], wrong: Wrong) -> InvalidPolicyError:
    problems = []
    for path, message in wrong:
        mark = _place(marks, path)
        key = ".".join(map(str, path))
        problems.append(
            Problem(message, key, mark.line, mark.column) if mark else Problem(message, key)
        )
    # In the order of the file; what has no place in it comes first.
    return InvalidPolicyError(name, sorted(problems, key=_by_place))


def _by_place(problem: Problem) -> tuple[int, int]:
    return problem.line or 0, problem.column or 0


def _place(marks: Mapping[_yaml.Path, Mark], path: _yaml.Path) -> Mark | None:
    for length in range(len(path), -1, -1):
        if path[:length] in marks:
            return marks[path[:length]]
    return None


# What pydantic found, in words.

_FIELDS: Final[dict[str, type[BaseModel]]] = {
    "defaults": Defaults,
    "telemetry": TelemetryPolicy,
    "reload": Reload,
    "normalise": Steps,
    "when": Condition,
}

_WANTED: Final = {
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "mapping_type": "a mapping (key: value)",
    "string_type": "text; put it in quotes",
    "bool_type": "true or false",
    "tuple_type": "a whole number or a list of whole numbers",
    "string_too_short": "at least one character long",
    "string_too_long": "at most 256 characters long",
    "too_short": "a list with at least one rank",
}


def _fields_at(path: _yaml.Path) -> tuple[str, ...]:
    """The keys that are known in the mapping at a path."""
    if not path:
        model: type[BaseModel] = Policy
    elif path[0] == "points" and len(path) == 2:
        model = PointPolicy
    else:
        model = _FIELDS[str(path[-1])]
    return tuple(model.model_fields)


def _path_of(location: Sequence[str | int]) -> _yaml.Path:
    """A pydantic location, without the parts that name validators and union members."""
    path: list[str | int] = []
    for part in location:
        if part == "[key]":
            continue
        if isinstance(part, str) and ("[" in part and part.endswith("]")) and len(path) > 2:
            continue
        path.append(part)
    # Unions add the member's name: `when.rank.int`, `when.rank.tuple[...]`.
    if "rank" in path[2:]:
        path = path[: path.index("rank", 2) + 1]
    return tuple(path)


def _explain(error: Mapping[str, Any]) -> tuple[_yaml.Path, str]:
    """A pydantic error as a path into the policy and a sentence."""
    path = _path_of(error["loc"])
    kind, given = error["type"], error.get("input")
    if path and path[-1] == "rank":
        return path, f"{show(given)} is not a rank: a whole number from 0, or a list of them"
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1])
        return path, f"unknown key{closest(str(path[-1]), known)}; known here: {', '.join(known)}"
    if kind == "missing":
        return path, "is missing; a policy starts with `version: 1`"
    if kind == "literal_error":
        if path == ("version",):
            return path, f"{show(given)} is not a version this sgguard knows; write `version: 1`"
        expected = error["ctx"]["expected"].replace("'", "")
        words = expected.replace(" or ", ", ").split(", ")
        hint = closest(given, words) if isinstance(given, str) else ""
        if path[:1] == ("defaults",) and given == "fallback":
            hint = "; a fallback needs a value, so it can only be set for a point"
        return path, f"{show(given)} is not one of {expected}{hint}"
    if kind == "value_error":
        return path, f"{error['ctx']['error']}"
    if kind in _WANTED:
        return path, f"{show(given)} must be {_WANTED[kind]}"
    return path, f"{show(given)}: {error['msg'][:1].lower()}{error['msg'][1:]}"


# What no single field can tell.


def _cross_checks(points: object) -> Wrong:
    """What is wrong between keys. Takes plain data, so that it runs beside other errors."""
    found: Wrong = []
    for key, entry in points.items() if isinstance(points, Mapping) else ():
        if not isinstance(key, str):
            continue
        at = ("points", key)
        if not known_point(key):
            found.append((at, f"unknown point{closest(key, BY_ID)}; known: {', '.join(BY_ID)}"))
        if not isinstance(entry, Mapping):
            continue
        if entry.get("action") == "fallback" and "fallback" not in entry:
            found.append((at, NEEDS_VALUE))
        aliases = entry.get("aliases")
        if isinstance(aliases, Mapping):
            words = {k: v for k, v in aliases.items() if isinstance(k, str)}
            found += [((*at, "aliases", alias), text) for alias, text in _alias_faults(words)]
    return found


def _alias_faults(aliases: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    spelt: dict[str, str] = {}
    for alias in aliases:
        form = canonical(alias)
        if not form:
            yield alias, "an alias must not be blank"
        elif form in spelt:
            yield alias, f"reads the same as the alias {spelt[form]!r}; remove one"
        spelt.setdefault(form, alias)
    for alias, value in aliases.items():
        onward = spelt.get(canonical(value)) if isinstance(value, str) else None
        if onward is not None:
            what = "itself" if onward == alias else f"the alias {onward!r}"
            yield alias, f"stands for {what}; an alias must stand for a value of SGLang's"


def against_sglang(policy: Policy, guard: Guard) -> Wrong:
    """What a policy says about a point that the SGLang in this process contradicts.

    An alias or fallback that SGLang refuses, and an alias that hides a value it accepts.
    """
    found: Wrong = []
    keys = policy.keys_for(guard.point.id)
    if not any(policy.points[key].aliases or policy.points[key].names_fallback for key in keys):
        return found  # nothing to ask SGLang
    accepted = guard.accepted()
    words = {canonical(value): value for value in accepted if isinstance(value, str)}
    known = ", ".join(show(value) for value in accepted)
    for key in keys:
        entry = policy.points[key]
        named: list[tuple[tuple[str, ...], str | None]] = [
            (("points", key, "aliases", alias), v) for alias, v in entry.aliases.items()
        ]
        if entry.names_fallback:
            named.append((("points", key, "fallback"), entry.fallback))
        for at, value in named:
            if guard.accepts(value) is not True:
                found.append(
                    (at, f"SGLang does not accept {show(value)} there; it accepts {known}")
                )
        for alias in entry.aliases:
            hidden = words.get(canonical(alias), UNSET)
            if hidden is not UNSET:
                message = f"SGLang itself accepts {show(hidden)} there; remove the alias"
                found.append((("points", key, "aliases", alias), message))
    return found


# Reading.


def validate(
    data: object, name: str = "python", marks: Mapping[_yaml.Path, Mark] | None = None
) -> Policy:
    """Turn plain data into a policy.

    Args:
        data: what the YAML holds.
        name: named in errors.
        marks: where each key stands.

    Raises:
        InvalidPolicyError: with everything that is wrong.
    """
    policy, wrong = _examine(data)
    if policy is None or wrong:
        raise _error(name, marks or {}, wrong)
    return policy


def _examine(data: object) -> tuple[Policy | None, Wrong]:
    if not isinstance(data, Mapping):
        return None, [((), "a policy is a mapping; it starts with `version: 1`")]
    policy: Policy | None = None
    wrong = _cross_checks(data.get("points"))
    try:
        policy = Policy.model_validate(dict(data))
    except ValidationError as error:
        wrong += [_explain(cast("Mapping[str, Any]", item)) for item in error.errors()]
    # A union reports once for each of its members: one sentence for a place is enough.
    places: dict[tuple[_yaml.Path, str], tuple[_yaml.Path, str]] = {}
    for path, message in wrong:
        places.setdefault((path, "" if path[-1:] == ("rank",) else message), (path, message))
    return policy, list(places.values())


def of_model(policy: Policy) -> Source:
    """A policy built in Python.

    Raises:
        InvalidPolicyError: for what no single field could tell when it was built.
    """
    source = Source(policy)
    wrong = _cross_checks({key: {"aliases": e.aliases} for key, e in policy.points.items()})
    if wrong:
        raise source.error(wrong)
    return source


def parse_policy(text: str, name: str, path: str | None = None) -> Source:
    """Read a policy from YAML text.

    Args:
        text: the YAML.
        name: named in errors.
        path: the file it was read from, if any.

    Raises:
        InvalidPolicyError: with everything that is wrong, each with line and column.
    """
    document = _yaml.parse(text)
    marks = document.marks
    if not document.faults:
        return Source(validate(document.data, name, marks), name, marks, path)
    faults = [
        Problem(
            fault.message,
            ".".join(map(str, fault.path)),
            fault.mark.line if fault.mark else None,
            fault.mark.column if fault.mark else None,
        )
        for fault in document.faults
    ]
    if document.data is not None:  # readable all the same: what else is wrong?
        faults += _error(name, marks, _examine(document.data)[1]).problems
    raise InvalidPolicyError(name, sorted(faults, key=_by_place))


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read and validate a policy file.

    Args:
        path: a YAML file (see ``examples/policy.yaml``).

    Raises:
        PolicyError: if it cannot be read or holds anything wrong. The message has one line
            per problem, ``file:line:column: key: what is wrong and what to do``.
    """
    text = read_text(path)
    return parse_policy(text, os.fsdecode(path)).policy
