"""How a refused value may be read: in the documented order, and never by a guess."""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgguard.repair import STEPS, Step, canonical, fold, readings, unquote


class Owner(enum.Enum):
    """The guarded enum: each member's value and its name can be told apart."""

    READ = "read"
    PRE_FILL = 1


class Foreign(str, enum.Enum):
    READ = "Read "
    NAMED = "write"


class Loose(enum.Enum):
    NUMBER = 3
    NOTHING = ""
    INNER = Owner.READ


ACCEPTED = ("read", "write", "pre-fill")


def never() -> Sequence[object]:
    raise AssertionError("SGLang was asked although no step needs it")


def read(
    value: object,
    *steps: Step,
    aliases: Mapping[str, object] | None = None,
    accepted: Callable[[], Sequence[object]] | Sequence[object] = ACCEPTED,
) -> list[tuple[Step, object]]:
    ask = accepted if callable(accepted) else lambda: accepted
    found = readings(value, steps=steps, aliases=aliases or {}, accepted=ask, owner=Owner)
    return list(found)


# Each step alone.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" read", ["read"]),
        ("\tread\r\n", ["read"]),
        ("'read'", ["read"]),
        ('"read"', ["read"]),
        ("`read`", ["read"]),
        (" ' \"read\" ' ", ["read"]),
        ("\u00a0read\u2003", ["read"]),
        ("'read\"", []),  # no pair
        ("'read", []),
        ("'", []),
        ("read", []),
        ("re ad", []),
        ("''", []),  # nothing would be left
        ("   ", []),
    ],
)
def test_white_space(text: str, expected: list[str]) -> None:
    """White space and matching quotes go, however they are nested."""
    assert read(text, "white_space", accepted=never) == [("white_space", e) for e in expected]


@pytest.mark.parametrize(
    ("text", "accepted", "expected"),
    [
        ("READ", ["read"], ["read"]),
        ("read", ["READ"], ["READ"]),
        ("ｒｅａｄ", ["read"], ["read"]),
        ("ＲＥＡＤ", ["Read"], ["Read", "read"]),
        ("ﬁll", ["fill"], ["fill"]),
        ("STRASSE", ["straße"], ["straße", "strasse"]),
        ("READ", [], ["read"]),  # nothing could be read from SGLang
        ("read", [], []),
        ("READ", [None, 3, "read"], ["read"]),
        (" READ", ["read"], [" read"]),  # another step's business
    ],
)
def test_case(text: str, accepted: list[object], expected: list[str]) -> None:
    """Full-width letters and case do not count; the spelling is SGLang's own."""
    assert read(text, "case", accepted=accepted) == [("case", e) for e in expected]


@pytest.mark.parametrize(
    ("text", "accepted", "expected"),
    [
        ("pre_fill", ["pre-fill"], ["pre-fill"]),
        ("pre fill", ["pre_fill"], ["pre_fill"]),
        ("pre--fill", ["pre-fill"], ["pre-fill"]),
        ("_pre-fill_", ["pre-fill"], ["pre-fill"]),
        ("pre fill", [], ["pre-fill", "pre_fill"]),
        ("Pre--Fill", [], ["pre-fill", "pre fill", "pre_fill"]),
        ("prefill", ["pre-fill"], []),  # a separator is not made up
        ("-_ ", ["pre-fill"], []),
    ],
)
def test_separators(text: str, accepted: list[object], expected: list[str]) -> None:
    """``-``, ``_`` and space are one; without SGLang's spelling all three are tried."""
    assert read(text, "separators", accepted=accepted) == [("separators", e) for e in expected]


def test_aliases() -> None:
    """Aliases compare in canonical form; what they stand for is used as it is written."""
    aliases = {canonical("Pre-Fill"): "write", canonical("off"): None}
    for text in ("pre-fill", "PRE_FILL", "pre  fill", "ｐｒｅ ｆｉｌｌ"):
        assert read(text, "aliases", aliases=aliases, accepted=never) == [("aliases", "write")]
    assert read("OFF", "aliases", aliases=aliases, accepted=never) == [("aliases", None)]
    assert read("prefill", "aliases", aliases=aliases, accepted=never) == []


# Enum members.


def test_a_member_of_the_guarded_enum_goes_by_value_and_name() -> None:
    assert read(Owner.READ, "enum_value", accepted=never) == [
        ("enum_value", "read"),
        ("enum_value", "READ"),
    ]
    assert read(Owner.PRE_FILL, "enum_value", accepted=never) == [
        ("enum_value", 1),
        ("enum_value", "PRE_FILL"),
    ]


def test_a_foreign_member_stands_for_its_value_alone() -> None:
    """Its name says nothing: ``Foreign.NAMED`` must not become a value called "named"."""
    assert read(Foreign.NAMED, *STEPS, accepted=["named"]) == [("enum_value", "write")]
    assert read(Loose.NUMBER, *STEPS) == [("enum_value", 3)]
    assert read(Loose.NOTHING, *STEPS) == []
    assert read(Loose.INNER, *STEPS) == [("enum_value", Owner.READ)]


def test_the_text_of_a_member_goes_through_the_other_steps() -> None:
    assert read(Foreign.READ, *STEPS) == [
        ("enum_value", "Read "),
        ("white_space", "Read"),
        ("case", "read"),
    ]
    assert ("separators", "pre-fill") in read(Owner.PRE_FILL, *STEPS)


def test_members_stay_unread_with_that_step_off() -> None:
    others = tuple(step for step in STEPS if step != "enum_value")
    for member in (Owner.READ, Foreign.READ, Loose.NUMBER):
        assert read(member, *others, accepted=never) == []


def test_a_member_with_any_value() -> None:
    """An array's ``==`` gives an array, and that is neither true nor false."""

    class Array:
        def __eq__(self, other: object) -> Any:
            return self

        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

        __hash__ = object.__hash__

    array = Array()
    odd = enum.Enum("odd", {"ARRAY": array})  # type: ignore[misc]
    ((step, found),) = read(odd.ARRAY, *STEPS)
    assert step == "enum_value"
    assert found is array


# All of them together.


def test_the_documented_order() -> None:
    """Every step starts from what the one before it left."""
    assert STEPS == ("enum_value", "white_space", "case", "separators", "aliases")
    aliases = {"pre_fill": "write"}
    assert read(" 'Pre_Fill' ", *STEPS, aliases=aliases) == [
        ("white_space", "Pre_Fill"),
        ("case", "pre_fill"),
        ("separators", "pre-fill"),
        ("aliases", "write"),
    ]


@pytest.mark.parametrize("off", STEPS)
def test_a_step_that_is_off_is_not_taken(off: Step) -> None:
    class Odd(enum.Enum):
        VALUE = " 'Pre_Fill' "

    on = tuple(step for step in STEPS if step != off)
    found = read(Odd.VALUE, *on, aliases={"pre_fill": "write", "'pre_fill'": "write"})
    taken = [step for step, _ in found]
    assert off not in taken
    if off == "enum_value":
        assert taken == []
    else:
        assert set(taken) == set(on)


def test_no_step_no_reading() -> None:
    assert read(" READ ", accepted=never) == []


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("A B", ["a-b", "a_b"]),
        ("FA", ["Fa", "fA"]),
        ("FA", ["fa", "Fa"]),
        ("ＦＡ", ["fa", "FA"]),
    ],
)
def test_ambiguous_spellings_are_not_used(text: str, accepted: list[str]) -> None:
    """Where two accepted spellings fit, choosing one would be a guess."""
    assert not {value for _, value in read(text, *STEPS, accepted=accepted)} & set(accepted)


def test_an_alias_decides_where_spelling_cannot() -> None:
    found = read("A B", *STEPS, accepted=["a-b", "a_b"], aliases={"a_b": "a_b"})
    assert found[-1] == ("aliases", "a_b")


def test_an_alias_may_not_stand_for_nothing() -> None:
    assert read("x", "aliases", aliases={"x": ""}, accepted=never) == []


@pytest.mark.parametrize("value", [None, 3, 2.5, True, b"read", ["read"], ("read",), object()])
def test_only_text_is_read(value: object) -> None:
    assert read(value, *STEPS, accepted=never) == []


@pytest.mark.parametrize("length", [257, 10_000_000])
def test_long_text_is_no_spelling(length: int) -> None:
    assert read(" " * (length - 4) + "READ", *STEPS, accepted=never) == []


def test_text_up_to_the_limit_is_read() -> None:
    assert read(" " * 252 + "READ", *STEPS)[-1] == ("case", "read")


class Hostile(str):
    """A string none of whose own methods may be used."""

    __slots__ = ()

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a value's own code ran")

    __eq__ = __ne__ = __len__ = __iter__ = __getitem__ = __str__ = __repr__ = __contains__ = _fail
    strip = casefold = replace = split = lower = _fail
    __hash__ = _fail  # type: ignore[assignment]


def test_a_hostile_string_is_read_as_its_text() -> None:
    found = read(Hostile(" READ"), *STEPS)
    assert [value for _, value in found] == ["READ", "read"]
    assert {type(value) for _, value in found} == {str}


def test_a_proxy_is_no_text() -> None:
    class Proxy:
        __class__ = str  # type: ignore[assignment]

    class Member:
        __class__ = Owner  # type: ignore[assignment]

    assert read(Proxy(), *STEPS, accepted=never) == []
    assert read(Member(), *STEPS, accepted=never) == []


WORDS = st.sampled_from(["read", "write", "pre-fill", "pre_fill", "Pre fill", "dsa", "ｒｅａｄ"])
AROUND = st.text(st.sampled_from(" '\"`-_\t"), max_size=4)
TEXTS = st.one_of(
    st.text(st.characters(), max_size=12),
    st.builds(lambda a, w, b: a + w + b, AROUND, st.one_of(WORDS, WORDS.map(str.upper)), AROUND),
)
VALUES = st.one_of(TEXTS, st.sampled_from([*Owner, *Foreign, *Loose]))
SUBSETS = st.sets(st.sampled_from(STEPS)).map(lambda on: tuple(s for s in STEPS if s in on))


@given(VALUES, SUBSETS, st.lists(TEXTS, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_readings_of_anything(
    value: object, steps: tuple[Step, ...], accepted: list[str], aliases: dict[str, str]
) -> None:
    """Never empty, never twice, never the value itself, only steps that are on, in order."""
    book = {canonical(alias): target for alias, target in aliases.items()}
    found = read(value, *steps, accepted=accepted, aliases=book)
    values = [candidate for _, candidate in found]
    assert "" not in values
    assert len(set(map(repr, values))) == len(values)
    assert not any(type(candidate) is type(value) and candidate == value for candidate in values)
    assert {step for step, _ in found} <= set(steps)
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        order = [steps.index(step) for step, _ in found]
        assert order == sorted(order)


def core(text: str) -> str:
    """A text without all that may differ between two spellings of one word."""
    for _ in range(3):
        text = fold(text)
    kept = (c for c in unicodedata.normalize("NFD", text) if c not in "-_'\"`" and not c.isspace())
    return unicodedata.normalize("NFC", "".join(kept))


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_what_is_read_differs_in_spelling_only(text: str, accepted: list[str]) -> None:
    """Without aliases nothing is read that is not the text, spelt another way."""
    for _, candidate in read(text, *STEPS, accepted=accepted):
        assert isinstance(candidate, str)
        assert core(candidate) == core(text)


@given(TEXTS)
def test_unquote_leaves_nothing_to_do(text: str) -> None:
    done = unquote(text)
    assert unquote(done) == done
    assert done in text
    assert done == done.strip()


@given(st.lists(st.text(st.sampled_from("abcXYZ09"), min_size=1), min_size=1), st.data())
def test_canonical_knows_one_separator(parts: list[str], data: st.DataObject) -> None:
    separators = st.text(st.sampled_from("-_ "), min_size=1, max_size=3)
    spelt = parts[0] + "".join(data.draw(separators) + part for part in parts[1:])
    assert canonical(spelt) == "_".join(parts).lower()
    assert canonical(spelt.upper()) == canonical(spelt)
