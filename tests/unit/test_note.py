"""The note says what is accepted and what to do, in a line that can be pasted."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from sgguard import note
from sgguard.catalogue import BY_ID, UNSET
from sgguard.decision import Decision
from sgguard.policy_file import parse_policy
from sgguard.rules import OBSERVE, Book
from sgguard.runtime import runtime

ACCEPTED = ("auto", "sglang", "diffusers")
POINT = "diffusion.backend"


class OldError(Exception):
    """An exception of Python 3.10, which takes no notes."""

    @property
    def add_note(self) -> Any:
        raise AttributeError("add_note")


class TakingError(ValueError):
    """An exception of any later Python, on whichever this runs."""

    __notes__: list[str]

    def add_note(self, text: str) -> None:
        self.__dict__.setdefault("__notes__", []).append(text)


def refusal(received: object, error: BaseException | None = None) -> Decision:
    return Decision(
        point=BY_ID[POINT],
        implementation="sglang",
        method="from_string",
        rule=OBSERVE,
        book=Book(),
        outcome="refused",
        received=received,
        applied=UNSET,
        step=None,
        error=error or TakingError(),
        frames=(),
    )


def compose(
    received: object, accepted: Sequence[object] = ACCEPTED, repairable: object = UNSET
) -> list[str]:
    return note.compose(refusal(received), accepted, repairable).split("\n")


# The three kinds of advice.


def test_what_normalising_would_repair() -> None:
    assert compose(" Auto", repairable="auto") == [
        "sgguard: ' Auto' was refused at diffusion.backend. SGLang accepts: 'auto', 'sglang', "
        "'diffusers'.",
        "It reads as 'auto'. To repair it, put into the policy:",
        "  points: {diffusion.backend: {action: normalise}}",
    ]


def test_none_may_be_what_it_reads_as() -> None:
    """``None`` is a value to some of SGLang's functions."""
    assert compose("x", repairable=None)[1].startswith("It reads as None.")


def test_what_came_close() -> None:
    assert compose("difusers")[1:] == [
        "The closest is 'diffusers'. If that is meant, put into the policy:",
        '  points: {diffusion.backend: {action: normalise, aliases: {"difusers": diffusers}}}',
    ]


@pytest.mark.parametrize("value", ["tensorrt", "", None, 3, ["auto"], "x" * 10_000_000])
def test_nothing_came_close(value: object) -> None:
    """Which of the accepted values is harmless is not guessed."""
    assert compose(value)[1:] == [
        "To go on with one of these in its place, put into the policy:",
        "  points: {diffusion.backend: {action: fallback, fallback: VALUE}}",
    ]


def test_where_nothing_is_known_of_what_is_accepted() -> None:
    assert compose("auto", accepted=())[0].endswith("SGLang accepts: (could not be read).")


def test_a_member_has_no_alias() -> None:
    """An alias is a text; a member that comes close gets the general advice."""

    class Other(enum.Enum):
        A = "difusers"

    assert note.close_match(Other.A, ACCEPTED) == "diffusers"
    assert "fallback: VALUE" in compose(Other.A)[-1]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("AUTOO", "auto"),
        ("SG-LANG", "sglang"),
        ("ｄｉｆｆｕｓｅｒ", "diffusers"),
        ("x", None),
        ("", None),
        (None, None),
        (b"auto", None),
    ],
)
def test_close_match(value: object, match: str | None) -> None:
    assert note.close_match(value, [*ACCEPTED, None, 3]) == match


# The line to paste.


def near(word: str) -> st.SearchStrategy[str]:
    """A word with things put into it, printable or not: still close to it."""
    junk = st.one_of(
        st.text(st.characters(), max_size=3),
        st.sampled_from(
            ["\x1b[0m", "\n", '"', "'", "\\", "\\n", "{", ": ", "#", "\u202e", "\ud800"]
        ),
    )
    return st.tuples(st.integers(0, len(word)), junk, junk).map(
        lambda t: t[1] + word[: t[0]] + t[2] + word[t[0] :]
    )


ODD = (
    "null",
    "true",
    "No",
    "on",
    "1",
    "1e3",
    "-",
    "a: b",
    "[x]",
    "*a",
    "&b",
    "#c",
    "~",
    "'q'",
    "é",
)


def pasted(line: str) -> Any:
    return yaml.safe_load(line)["points"][POINT]


@given(st.sampled_from([*ACCEPTED, *(f"{odd} value" for odd in ODD), *ODD]).flatmap(
    lambda word: st.tuples(st.just(word), near(word))
))  # fmt: skip
def test_the_line_means_what_it_says(case: tuple[str, str]) -> None:
    """Read as YAML, it is an alias from the very value to the very one it is close to."""
    word, value = case
    lines = compose(value, accepted=(word,))
    assert all(line.isprintable() for line in lines)
    assume("aliases" in lines[-1])
    assert pasted(lines[-1]) == {"action": "normalise", "aliases": {value: word}}


@pytest.mark.parametrize("word", ODD)
def test_odd_words_stay_text(word: str) -> None:
    """``off`` and ``1`` in YAML are not what SGLang accepts."""
    lines = compose(word + word[-1], accepted=(word,))
    assert "aliases" in lines[-1] or len(word) == 1
    if "aliases" in lines[-1]:
        assert pasted(lines[-1])["aliases"] == {word + word[-1]: word}


def test_the_longest_line() -> None:
    """Every character escaped to ten: still a key that YAML takes."""
    value = "a" * 60 + "\U000e0001" * 40
    (_, advice, line) = compose(value, accepted=("a" * 60,))
    assert "closest" in advice
    assert pasted(line)["aliases"] == {value: "a" * 60}
    # Longer, the key would be too long for YAML; a text of that length is no misspelling.
    assert note.close_match("a" * 100, ["a" * 100]) is not None
    assert note.close_match("a" * 101, ["a" * 100]) is None


@pytest.mark.parametrize("value", ["difusers", ' "Difuser"\n', "SG lang!", "difu\tsers \\"])
def test_sgguard_itself_takes_the_line(value: str) -> None:
    """The policy parser is stricter than PyYAML; the advice is no use if it refuses."""
    lines = compose(value)
    assert "aliases" in lines[-1]
    policy = parse_policy("version: 1\n" + lines[-1].strip() + "\n", "policy.yaml").policy
    assert policy.book("test").rules(POINT)[0].aliases


class Hostile(str):
    __slots__ = ()

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("a value's own code ran")

    __len__ = __iter__ = __getitem__ = __str__ = __repr__ = replace = casefold = _fail


def test_a_hostile_string() -> None:
    assert pasted(compose(Hostile("difusers"))[-1])["aliases"] == {"difusers": "diffusers"}


# On the exception.


def test_a_note_is_added_to_those_there_are() -> None:
    error = TakingError("message")
    error.add_note("SGLang's own")
    note.add(refusal("x", error), ACCEPTED, UNSET)
    first, second = error.__notes__
    assert first == "SGLang's own"
    assert second == note.compose(refusal("x"), ACCEPTED, UNSET)
    assert error.args == ("message",)


def test_the_same_note_is_not_added_twice() -> None:
    """One exception may pass two guards on its way."""
    error = TakingError()
    note.add(refusal("x", error), ACCEPTED, UNSET)
    note.add(refusal("x", error), ACCEPTED, UNSET)
    assert len(error.__notes__) == 1
    note.add(refusal("y", error), ACCEPTED, UNSET)
    assert len(error.__notes__) == 2


@pytest.mark.skipif(not hasattr(BaseException, "add_note"), reason="this Python has no notes")
def test_a_real_exception() -> None:
    error = ValueError("x")
    note.add(refusal("x", error), ACCEPTED, UNSET)
    assert error.__notes__ == [note.compose(refusal("x"), ACCEPTED, UNSET)]


def test_an_exception_that_takes_no_notes(caplog: pytest.LogCaptureFixture) -> None:
    """Python 3.10's: what the note would have said goes to the log, with the line there is."""
    error = OldError("message")
    text = note.add(refusal("difusers", error), ACCEPTED, UNSET)
    assert text == note.compose(refusal("difusers"), ACCEPTED, UNSET)
    with caplog.at_level(logging.WARNING, "sgguard"):
        for _ in range(2):  # the second within the minute is held back, note and all
            runtime.recorder.invalid(refusal("difusers", error), text)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("sgguard", "WARNING")
    first, rest = record.getMessage().split("\n", 1)
    assert first.startswith("sgguard: 'difusers' at diffusion.backend refused")
    assert rest == text
    assert not hasattr(error, "__notes__")
