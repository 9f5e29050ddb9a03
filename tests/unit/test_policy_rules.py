"""What a policy says about a point: globs, conditions, steps, and the fingerprint."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sgguard import Policy
from sgguard.catalogue import BY_ID, UNSET
from sgguard.compat import process
from sgguard.policy import matches, specificity
from sgguard.repair import STEPS
from sgguard.rules import Book, When


def policy(**parts: Any) -> Policy:
    return Policy.model_validate({"version": 1, **parts})


def test_without_entries_the_defaults_hold() -> None:
    (rule,) = policy().rules("srt.cp_strategy")
    assert (rule.action, rule.steps, rule.fallback) == ("observe", STEPS, UNSET)
    (rule,) = policy(defaults={"action": "normalize", "log": "info"}).rules("srt.cp_strategy")
    assert (rule.action, rule.log) == ("normalise", "info")


def test_the_most_specific_entry_decides_alone() -> None:
    found = policy(
        points={
            "*": {"log": "debug"},
            "srt.*": {"action": "normalise", "aliases": {"zz": "zigzag"}},
            "srt.cp*": {"log": "error"},
            "srt.cp_strategy": {"log": "none"},
        }
    )
    assert found.keys_for("srt.cp_strategy") == ["srt.cp_strategy", "srt.cp*", "srt.*", "*"]
    assert found.keys_for("srt.speculative_algorithm") == ["srt.*", "*"]
    assert found.keys_for("diffusion.role") == ["*"]
    # Nothing is inherited from the less specific ones.
    assert found.rules("srt.cp_strategy")[0].action == "observe"
    assert found.rules("srt.cp_strategy")[0].aliases == {}


def test_of_equally_specific_globs_the_first_in_the_file_decides() -> None:
    one, two = {"action": "normalise"}, {"action": "observe"}
    assert specificity("srt.cp_st*") < specificity("*p_strategy")
    tie = {"srt.cp_str*": one, "*p_strategy": two}
    assert specificity("srt.cp_str*") == specificity("*p_strategy")
    assert policy(points=tie).rules("srt.cp_strategy")[0].action == "normalise"
    swapped = dict(reversed(tie.items()))
    assert policy(points=swapped).rules("srt.cp_strategy")[0].action == "observe"
    assert policy(points=tie).fingerprint != policy(points=swapped).fingerprint


@given(st.sampled_from(sorted(BY_ID)), st.data())
def test_a_glob_made_from_an_id_matches_it(point: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(point)))
    end = data.draw(st.integers(start, len(point)))
    pattern = point[:start] + "*" + point[end:]
    assert matches(pattern, point)
    assert specificity(pattern) < specificity(point)


def test_conditions() -> None:
    book = policy(
        points={
            "srt.cp_strategy": {
                "action": "normalise",
                "when": {"caller": "sglang.srt.*", "rank": [0, 2]},
            },
            "srt.*": {"log": "error"},
        }
    ).book("test")

    def choose(caller: str | None, rank: int | None) -> str:
        return book.choose("srt.cp_strategy", caller, lambda: rank).key

    assert choose("sglang.srt.layers.cp.base", 0) == "points.srt.cp_strategy"
    assert choose("sglang.srt.layers.cp.base", 2) == "points.srt.cp_strategy"
    assert choose("sglang.srt.layers.cp.base", 1) == "points.srt.*"
    assert choose("sglang.srt.layers.cp.base", None) == "points.srt.*"
    assert choose("__main__", 0) == "points.srt.*"
    assert choose(None, 0) == "points.srt.*"
    assert policy().book("test").choose("x", None, lambda: None).key == "defaults"


def test_rank_is_asked_only_where_a_condition_needs_it() -> None:
    def never() -> int:
        raise AssertionError("asked")

    assert When(caller="a.*").holds("a.b", never)
    assert not When(caller="a.*", ranks=frozenset({0})).holds("b", never)


@pytest.mark.parametrize(
    ("version", "met"),
    [("0.5.20", True), ("0.5.19", False), ("0.6.0rc1", True), (None, False), ("dev", False)],
)
def test_sglang_condition(version: str | None, met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgguard.policy.sglang_version", lambda: version)
    found = policy(points={"srt.*": {"action": "normalise", "when": {"sglang": ">=0.5.20"}}})
    assert (found.rules("srt.cp_strategy")[0].action == "normalise") is met


def test_rank_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert process.rank() is None
    monkeypatch.setenv("RANK", "3")
    assert process.rank() == 3
    monkeypatch.setenv("RANK", "three")
    assert process.rank() is None


def test_steps_are_switched_off_one_by_one() -> None:
    found = policy(
        defaults={"normalise": {"case": False, "aliases": False}},
        points={"srt.*": {"normalise": {"case": True, "separators": False}}},
    )
    assert found.rules("diffusion.role")[0].steps == ("enum_value", "white_space", "separators")
    assert found.rules("srt.cp_strategy")[0].steps == ("enum_value", "white_space", "case")


def test_spans_and_length() -> None:
    found = policy(
        points={
            "srt.*": {"spans": "none"},
            "diffusion.*": {"spans": "none", "when": {"caller": "x"}},
        },
        telemetry={"spans": "invalid", "max_value_length": 20},
    )
    book = found.book("test")
    assert book.spans("srt.cp_strategy") == "none"
    assert book.spans("diffusion.role") == "invalid"  # conditions are for refused values
    assert book.max_value_length == 20
    assert Book().spans("srt.cp_strategy") == "transitions"


def test_a_policy_cannot_be_changed() -> None:
    found = policy(points={"srt.*": {"aliases": {"a": "zigzag"}}})
    with pytest.raises(ValidationError):
        found.version = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.points["x"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        found.points["srt.*"].aliases["b"] = "zigzag"  # type: ignore[index]


BASE = {
    "points": {
        "srt.cp_strategy": {"action": "normalise", "aliases": {"a": "zigzag", "b": "interleave"}},
        "diffusion.role": {},
    }
}


@pytest.mark.parametrize(
    "same",
    [
        {"points": dict(reversed(BASE["points"].items()))},
        {**BASE, "defaults": {"action": "observe"}, "telemetry": {}},
        {
            "points": {
                "srt.cp_strategy": {
                    "action": "normalize",
                    "aliases": {"b": "interleave", "a": "zigzag"},
                    "normalise": {"case": True},
                },
                "diffusion.role": {"action": "observe", "log": "warning"},
            }
        },
    ],
)
def test_spelling_does_not_change_the_fingerprint(same: dict[str, Any]) -> None:
    assert policy(**same).fingerprint == policy(**BASE).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"defaults": {"action": "normalise"}},
        {"defaults": {"log": "info"}},
        {"defaults": {"normalise": {"case": False}}},
        {"telemetry": {"spans": "none"}},
        {"telemetry": {"max_value_length": 65}},
        {"reload": {"mode": "at_restart"}},
        {"points": {**BASE["points"], "diffusion.role": {"fallback": None}}},
        {"points": {**BASE["points"], "diffusion.role": {"fallback": "server"}}},
        {"points": {**BASE["points"], "diffusion.role": {"when": {"rank": 0}}}},
        {"points": {**BASE["points"], "diffusion.role": {"when": {"sglang": ">1"}}}},
        {"points": {**BASE["points"], "diffusion.role": {"spans": "none"}}},
        {"points": {**BASE["points"], "diffusion.role": {"aliases": {"x": None}}}},
    ],
)
def test_every_effect_changes_the_fingerprint(change: dict[str, Any]) -> None:
    one, two = policy(**BASE).fingerprint, policy(**{**BASE, **change}).fingerprint
    assert one != two
    assert len(two) == 12
