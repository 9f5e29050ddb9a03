"""The policy: what may be done about a value that SGLang refuses.

The model is pydantic's, frozen, with unknown keys forbidden. Everything wrong with a policy is
reported at once, each with its place, before any of it is used. What a policy says about one
point becomes a ``sgguard.guard.Rule``, which is all that a guarded call ever reads.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sgguard import _yaml
from sgguard._text import Mark, read_text
from sgguard.catalogue import BY_ID, UNSET, looks_discovered
from sgguard.errors import InvalidPolicyError, Problem
from sgguard.repair import canonical
from sgguard.rules import Action, Rule, Spans, TelemetryConfig
from sgguard.values import show

ACTIONS: Final = get_args(Action)


def _action(value: object) -> object:
    return "normalise" if value == "normalize" else value


def _version(value: object) -> object:
    # 1.0 and true equal 1 in Python; in a file they are something else.
    if type(value) is not int:
        raise ValueError("must be the number 1")
    return value


ActionField = Annotated[Action, BeforeValidator(_action)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Defaults(_Model):
    """What holds for points that the policy does not name."""

    action: Annotated[Literal["observe", "normalise"], BeforeValidator(_action)] = Field(
        default="observe",
        description="observe: behave exactly as SGLang. normalise: repair spelling.",
    )


class PointPolicy(_Model):
    """What holds for one point."""

    action: ActionField | None = Field(
        default=None, description="observe, normalise or fallback; the default's if left out"
    )
    aliases: Mapping[str, str | None] = Field(
        default_factory=dict, description="other words, and the value each stands for"
    )
    fallback: str | None = Field(
        default=None,
        description="the value used when normalising does not help; null where SGLang takes None",
    )


class TelemetryPolicy(_Model):
    """How much is recorded."""

    spans: Spans = Field(
        default="transitions",
        description="transitions: a span per transition and per invalid value; invalid; none",
    )
    max_value_length: int = Field(
        default=64, ge=8, le=4096, description="how many characters of a value are shown"
    )


class Policy(_Model):
    """A whole policy.

    Args:
        version: always 1.
        defaults: for points not named.
        points: by point id.
        telemetry: how much is recorded.

    Raises:
        pydantic.ValidationError: where built in Python from wrong values. ``load_policy``
            and ``install`` raise ``PolicyError`` instead.
    """

    version: Annotated[Literal[1], BeforeValidator(_version)] = Field(
        description="the version of this file's form"
    )
    defaults: Defaults = Field(default_factory=Defaults)
    points: Mapping[str, PointPolicy] = Field(default_factory=dict)
    telemetry: TelemetryPolicy = Field(default_factory=TelemetryPolicy)

    def rule(self, point_id: str) -> Rule:
        """What the policy says about one point."""
        entry = self.points.get(point_id)
        if entry is None:
            return Rule(action=self.defaults.action)
        return Rule(
            action=entry.action or self.defaults.action,
            aliases=MappingProxyType(
                {canonical(alias): value for alias, value in entry.aliases.items()}
            ),
            fallback=entry.fallback if "fallback" in entry.model_fields_set else UNSET,
        )

    def telemetry_config(self) -> TelemetryConfig:
        """The telemetry block in the form telemetry reads."""
        return TelemetryConfig(self.telemetry.spans, self.telemetry.max_value_length)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that are equal exactly where the effective policy is."""
        effective = self.model_dump(mode="json")
        for point_id, entry in self.points.items():
            effective["points"][point_id]["action"] = entry.action or self.defaults.action
            if "fallback" not in entry.model_fields_set:
                del effective["points"][point_id]["fallback"]
        text = json.dumps(effective, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def closest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean x?)"`` for the known word spelt most alike, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


_FIELDS: Final[dict[type[BaseModel], tuple[str, ...]]] = {
    model: tuple(model.model_fields) for model in (Policy, Defaults, PointPolicy, TelemetryPolicy)
}


def _fields_at(path: _yaml.Path) -> tuple[str, ...]:
    if not path:
        return _FIELDS[Policy]
    if path[0] == "points":
        return _FIELDS[PointPolicy]
    return _FIELDS[Defaults] if path[0] == "defaults" else _FIELDS[TelemetryPolicy]


def _explain(error: Mapping[str, Any]) -> tuple[_yaml.Path, str]:
    """A pydantic error as a path into the policy and a sentence."""
    path: _yaml.Path = tuple(
        part for part in error["loc"] if part not in ("[key]", "function-before")
    )
    kind, given = error["type"], error.get("input")
    key = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1])
        return path, f"unknown key{closest(key, known)}; known here: {', '.join(known)}"
    if kind == "missing":
        return path, "is missing; a policy starts with `version: 1`"
    if kind == "literal_error":
        expected = error["ctx"]["expected"].replace("'", "")
        words = expected.replace(" or ", ", ").split(", ")
        hint = closest(given, words) if isinstance(given, str) else ""
        if path[:1] == ("defaults",) and given == "fallback":
            hint = "; a fallback needs a value, so it can only be set for a point"
        return path, f"{show(given)} is not one of {expected}{hint}"
    if kind == "value_error":
        return path, str(error["ctx"]["error"])
    wanted = {
        "model_type": "a mapping (key: value)",
        "dict_type": "a mapping (key: value)",
        "mapping_type": "a mapping (key: value)",
        "string_type": "text; put it in quotes",
        "int_type": "a whole number",
    }.get(kind)
    if wanted is not None:
        return path, f"{show(given)} must be {wanted}"
    return path, f"{show(given)}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _cross_checks(policy: Policy) -> list[tuple[_yaml.Path, str]]:
    """What the fields' types cannot say."""
    found: list[tuple[_yaml.Path, str]] = []
    for point_id, entry in policy.points.items():
        at = ("points", point_id)
        if point_id not in BY_ID and not looks_discovered(point_id):
            found.append(
                (at, f"unknown point{closest(point_id, BY_ID)}; known: {', '.join(BY_ID)}")
            )
        if entry.action == "fallback" and "fallback" not in entry.model_fields_set:
            found.append((at, "action fallback needs `fallback: VALUE`"))
        spelt: dict[str, str] = {}
        for alias in entry.aliases:
            form = canonical(alias)
            if not form:
                found.append(((*at, "aliases", alias), "an alias must not be empty"))
            elif form in spelt:
                message = f"reads the same as the alias {spelt[form]!r}; remove one"
                found.append(((*at, "aliases", alias), message))
            spelt.setdefault(form, alias)
    return found


def _place(marks: Mapping[_yaml.Path, Mark], path: _yaml.Path) -> Mark | None:
    for length in range(len(path), -1, -1):
        if path[:length] in marks:
            return marks[path[:length]]
    return None


@dataclass(frozen=True)
class Source:
    """A policy and where it came from.

    Attributes:
        policy: the policy.
        name: the file, or what else it came from; named in errors.
        marks: where each key stands, if it came from a text.
    """

    policy: Policy
    name: str = "policy"
    marks: Mapping[_yaml.Path, Mark] = field(default_factory=dict)

    def error(self, wrong: Sequence[tuple[_yaml.Path, str]]) -> InvalidPolicyError:
        """An error for things that are wrong with this policy, each with its place."""
        return _error(self.name, self.marks, wrong)


def _error(
    name: str,
    marks: Mapping[_yaml.Path, Mark],
    wrong: Sequence[tuple[_yaml.Path, str]],
) -> InvalidPolicyError:
    problems = []
    for path, message in wrong:
        mark = _place(marks, path)
        key = ".".join(map(str, path))
        problems.append(
            Problem(message, key, mark.line, mark.column) if mark else Problem(message, key)
        )
    # In the order of the file; what has no place in it comes first.
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    return InvalidPolicyError(name, problems)


def validate(data: object, name: str, marks: Mapping[_yaml.Path, Mark] | None = None) -> Policy:
    """Turn plain data into a policy.

    Args:
        data: what the YAML holds.
        name: named in errors.
        marks: where each key stands.

    Raises:
        InvalidPolicyError: with everything that is wrong.
    """
    if not isinstance(data, dict):
        wrong: list[tuple[_yaml.Path, str]] = [
            ((), "a policy is a mapping; it starts with `version: 1`")
        ]
    else:
        try:
            policy = Policy.model_validate(data)
        except ValidationError as error:
            wrong = [_explain(cast("Mapping[str, Any]", item)) for item in error.errors()]
        else:
            wrong = _cross_checks(policy)
            if not wrong:
                return policy
    raise _error(name, marks or {}, wrong)


def _of_faults(name: str, faults: Sequence[_yaml.Fault]) -> InvalidPolicyError:
    return InvalidPolicyError(
        name,
        [
            Problem(
                fault.message,
                ".".join(map(str, fault.path)),
                fault.mark.line if fault.mark else None,
                fault.mark.column if fault.mark else None,
            )
            for fault in faults
        ],
    )


def parse_policy(text: str, name: str) -> Source:
    """Read a policy from YAML text.

    Raises:
        InvalidPolicyError: with everything that is wrong, each with line and column.
    """
    document = _yaml.parse(text)
    if document.faults:
        raise _of_faults(name, document.faults)
    return Source(validate(document.data, name, document.marks), name, document.marks)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read and validate a policy file.

    Args:
        path: a YAML file (see ``examples/policy.yaml``).

    Raises:
        PolicyError: if it cannot be read or holds anything wrong. The message has one line
            per problem, ``file:line:column: key: what is wrong and what to do``.
    """
    return parse_policy(read_text(path), os.fspath(path)).policy
