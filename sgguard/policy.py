"""The policy: what may be done about a value that SGLang refuses.

The model is pydantic's, frozen, with unknown keys forbidden. What a policy says about one
point becomes a tuple of ``sgguard.rules.Rule``, which is all that a guarded call ever reads.
Reading a file and explaining what is wrong with it is ``sgguard.policy_file``'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from typing_extensions import Self

from sgguard.catalogue import BY_ID, UNSET, looks_discovered
from sgguard.compat.process import sglang_version
from sgguard.repair import STEPS, Step, canonical
from sgguard.rules import Action, Book, LogLevel, Rule, Spans, When

NEEDS_VALUE: Final = "action fallback needs `fallback: VALUE`"

_K = TypeVar("_K")
_V = TypeVar("_V")

GLOB_CHARACTERS: Final = frozenset("*?[")


def is_glob(pattern: str) -> bool:
    """Whether a key of ``points`` is a pattern, not an id."""
    return not GLOB_CHARACTERS.isdisjoint(pattern)


def matches(pattern: str, point_id: str) -> bool:
    """Whether a key of ``points`` speaks of a point. ``*`` matches dots as well."""
    return fnmatchcase(point_id, pattern) if is_glob(pattern) else pattern == point_id


def specificity(pattern: str) -> tuple[bool, int]:
    """Orders keys that match one point: an id before every glob, then more literal text."""
    return (not is_glob(pattern), sum(char not in GLOB_CHARACTERS for char in pattern))


def _action(value: object) -> object:
    return "normalise" if value == "normalize" else value


def _frozen(value: Mapping[_K, _V]) -> Mapping[_K, _V]:
    return MappingProxyType(dict(value))


def _int(value: object) -> object:
    # 1.0 and true equal 1 in Python; in a file they are something else.
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise ValueError(
            f"{value!r} is not a version specifier; write for example '>=0.5.20,<0.6'"
        ) from None
    return value


ActionField = Annotated[
    Action,
    BeforeValidator(_action),
    WithJsonSchema({"type": "string", "enum": ["observe", "normalise", "normalize", "fallback"]}),
]
DefaultActionField = Annotated[
    Literal["observe", "normalise"],
    BeforeValidator(_action),
    WithJsonSchema({"type": "string", "enum": ["observe", "normalise", "normalize"]}),
]
Word = Annotated[str, Field(min_length=1, max_length=256)]


class _Model(BaseModel):
    # arbitrary_types: the mappings are frozen after validation.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Steps(_Model):
    """The normalise steps, each of which can be switched off."""

    enum_value: bool | None = None
    """A member of an Enum is read as its value."""
    white_space: bool | None = None
    """White space and matching quotes around the value are removed."""
    case: bool | None = None
    """Unicode NFKC is applied and case is folded."""
    separators: bool | None = None
    """Hyphen, underscore and space are treated alike."""
    aliases: bool | None = None
    """The policy's aliases are looked up."""


class Condition(_Model):
    """When an entry holds. All that is given must hold."""

    caller: Word | None = None
    """A glob for the module that made the call, such as `sglang.multimodal_gen.*`."""
    rank: (
        Annotated[int, Field(ge=0), BeforeValidator(_int)]
        | Annotated[
            tuple[Annotated[int, Field(ge=0), BeforeValidator(_int)], ...],
            Field(min_length=1, strict=False),
        ]
        | None
    ) = None
    """The global rank of the process, or a list of ranks."""
    sglang: Annotated[Word, AfterValidator(_specifier)] | None = None
    """A version specifier for SGLang, such as `>=0.5.20,<0.6`."""


class Defaults(_Model):
    """What holds where a point's entry says nothing, and for points without one."""

    action: DefaultActionField = "observe"
    """observe: exactly as SGLang. normalise: repair spelling. A fallback needs a value, so it
    can only be set for a point."""
    normalise: Steps = Field(default_factory=Steps)
    """Normalise steps; all are on unless switched off."""
    log: LogLevel = "warning"
    """The level of log lines about values that SGLang refused."""


class PointPolicy(_Model):
    """What holds for one point, or for the points a glob matches."""

    action: ActionField | None = None
    """observe, normalise or fallback; the default's if left out."""
    aliases: Annotated[Mapping[Word, Word | None], AfterValidator(_frozen)] = Field(
        default_factory=lambda: MappingProxyType({})
    )
    """Other words, and the value each stands for."""
    fallback: Word | None = None
    """The value used when normalising does not help. null where SGLang takes None."""
    normalise: Steps = Field(default_factory=Steps)
    """Normalise steps for this point."""
    when: Condition = Field(default_factory=Condition)
    """When this entry holds; otherwise the next most specific one decides."""
    log: LogLevel | None = None
    """The level of this point's log lines."""
    spans: Spans | None = None
    """What gets a span at this point; telemetry.spans if left out."""

    @property
    def names_fallback(self) -> bool:
        """Whether a fallback is given; ``null`` is one."""
        return "fallback" in self.model_fields_set

    @model_validator(mode="after")
    def _fallback_has_a_value(self) -> Self:
        if self.action == "fallback" and not self.names_fallback:
            raise ValueError(NEEDS_VALUE)
        return self


class TelemetryPolicy(_Model):
    """How much is recorded. Metrics are always there."""

    spans: Spans = "transitions"
    """transitions: a span per transition and per refused value. invalid: for refused values
    alone. none."""
    max_value_length: Annotated[int, Field(ge=8, le=4096), BeforeValidator(_int)] = 64
    """How many characters of a received value are shown."""


class Reload(_Model):
    """Whether a changed policy file is taken over while the process runs."""

    mode: Literal["live", "at_restart"] = "live"
    """live: within seconds. at_restart: the policy read at start-up stays for the life of the
    process."""


_POINT_KEY_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": sorted(BY_ID)},
        {"pattern": r"[*?\[]"},  # a glob
        {"pattern": r"(^|\.)[A-Z]"},  # a discovered point ends in a class name
    ]
}


class Policy(_Model):
    """A whole policy.

    Raises:
        pydantic.ValidationError: where built in Python from wrong values. ``load_policy``
            and ``install`` raise ``InvalidPolicyError`` instead.
    """

    version: Annotated[Literal[1], BeforeValidator(_int)]
    """The version of this file's form: 1."""
    defaults: Defaults = Field(default_factory=Defaults)
    """What holds where a point's entry says nothing."""
    points: Annotated[Mapping[str, PointPolicy], AfterValidator(_frozen)] = Field(
        default_factory=lambda: MappingProxyType({}),
        json_schema_extra={"propertyNames": _POINT_KEY_SCHEMA},
    )
    """By point id, or a glob such as `srt.*`. The most specific entry decides alone: an id
    before every glob, then the glob with more literal text, then the one that stands first."""
    telemetry: TelemetryPolicy = Field(default_factory=TelemetryPolicy)
    """How much is recorded."""
    reload: Reload = Field(default_factory=Reload)
    """Whether a changed file is taken over while the process runs."""

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that are equal exactly where the effective policy is.

        Spelling, comments and order of keys do not count; the order of globs that are
        equally specific does.
        """
        effective = {
            "defaults": [self.defaults.action, self.defaults.log],
            "points": [
                [key, *self._effective(key)]
                for key in sorted(self.points, key=lambda k: (specificity(k), k), reverse=True)
            ],
            "steps": list(_steps(self.defaults.normalise)),
            "telemetry": self.telemetry.model_dump(mode="json"),
            "ties": [key for key in self.points if is_glob(key)],
            "reload": self.reload.mode,
        }
        text = json.dumps(effective, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _effective(self, key: str) -> list[Any]:
        rule, entry = self._rule(key, self.points[key]), self.points[key]
        return [
            rule.action,
            sorted((alias, value or "") for alias, value in entry.aliases.items()),
            entry.names_fallback,
            entry.fallback,
            list(rule.steps),
            rule.log,
            rule.spans,
            entry.when.caller,
            sorted(rule.when.ranks) if rule.when.ranks is not None else None,
            entry.when.sglang,
        ]

    def keys_for(self, point_id: str) -> list[str]:
        """The keys of ``points`` that speak of a point, the most specific first."""
        found = [key for key in self.points if matches(key, point_id)]
        return sorted(found, key=specificity, reverse=True)

    def rules(self, point_id: str) -> tuple[Rule, ...]:
        """What the policy says about a point, most specific first.

        Entries whose ``sglang`` specifier this process does not meet are left out.
        """
        found = [
            self._rule(key, self.points[key])
            for key in self.keys_for(point_id)
            if _meets(self.points[key].when.sglang)
        ]
        fallback = Rule(
            action=self.defaults.action,
            steps=_steps(self.defaults.normalise),
            log=self.defaults.log,
            spans=self.telemetry.spans,
        )
        return (*found, fallback)

    def _rule(self, key: str, entry: PointPolicy) -> Rule:
        rank = entry.when.rank
        return Rule(
            action=entry.action or self.defaults.action,
            aliases=MappingProxyType(
                {canonical(alias): value for alias, value in entry.aliases.items()}
            ),
            fallback=entry.fallback if entry.names_fallback else UNSET,
            steps=_steps(self.defaults.normalise, entry.normalise),
            log=entry.log or self.defaults.log,
            spans=entry.spans or self.telemetry.spans,
            when=When(
                entry.when.caller,
                None if rank is None else frozenset((rank,) if isinstance(rank, int) else rank),
            ),
            key=f"points.{key}",
        )

    def book(self, source: str) -> Book:
        """This policy in the form that guards read."""
        return Book(self.rules, self.telemetry.max_value_length, self.fingerprint, source)


def _steps(*levels: Steps) -> tuple[Step, ...]:
    on = []
    for step in STEPS:
        given = [v for v in (getattr(level, step) for level in levels) if v is not None]
        if not given or given[-1]:
            on.append(step)
    return tuple(on)


def _meets(specifier: str | None) -> bool:
    if specifier is None:
        return True
    version = sglang_version()
    if version is None:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def known_point(key: str, more: Iterable[str] = ()) -> bool:
    """Whether a key of ``points`` can mean a point at all.

    A glob must match a point of the catalogue, one of ``more``, or be able to match a
    discovered one: it names a class or starts like an SGLang package.
    """
    if not is_glob(key):
        return key in BY_ID or looks_discovered(key)
    if any(matches(key, point_id) for point_id in (*BY_ID, *more)):
        return True
    return looks_discovered(key)
