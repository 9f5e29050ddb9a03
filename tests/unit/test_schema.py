"""The shipped JSON Schema accepts and refuses the same files as the model."""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgguard.catalogue import BY_ID
from sgguard.errors import InvalidPolicyError
from sgguard.policy_file import validate
from sgguard.schema import policy_schema, render, shipped

VALIDATOR = jsonschema.Draft202012Validator(policy_schema())

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.just(0.5), st.text(max_size=3), st.just([]),
    st.just({}), st.just({"x": 1}),
)  # fmt: skip
# 1.0 is left out: JSON Schema holds it to be the integer 1, and the model refuses it.


def maybe(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly a good value, now and then any other."""
    return st.one_of(*[good] * 9, JUNK)


def mapping(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    known = st.fixed_dictionaries({}, optional={k: maybe(v) for k, v in fields.items()})
    stray = st.one_of(st.just({}), st.just({}), st.just({}), st.just({"acton": "observe"}))
    return st.builds(lambda a, b: {**a, **b}, known, stray)


ACTIONS = st.sampled_from(["observe", "normalise", "normalise", "normalize", "fallback", "repair"])
LOGS = st.sampled_from(["debug", "info", "warning", "error", "none", "off"])
SPANS = st.sampled_from(["transitions", "invalid", "none", "all"])
STEPS = mapping(
    **dict.fromkeys(("enum_value", "white_space", "case", "separators", "aliases"), st.booleans())
)
RANKS = st.one_of(st.integers(-1, 9), st.lists(st.one_of(st.integers(-1, 9), st.just("x"))))
# Words that cannot form a chain: chains are beyond a schema.
POINT = mapping(
    action=ACTIONS,
    aliases=st.dictionaries(
        st.sampled_from(["aa", "bb"]), maybe(st.sampled_from(["zigzag", None, "v" * 257]))
    ),
    fallback=st.sampled_from(["skip", None, "", "v" * 257]),
    normalise=STEPS,
    # What is a version specifier, only `packaging` knows.
    when=mapping(caller=st.just("a.*"), rank=RANKS, sglang=st.just(">=0.5")),
    log=LOGS,
    spans=SPANS,
)
KEYS = st.sampled_from([*BY_ID, "srt.*", "srt.x.Kind", "srt.X.mode", "srt.nonsense", ""])
POLICIES = st.builds(
    lambda version, rest: {**({} if version == "none" else {"version": version}), **rest},
    st.sampled_from([1, 1, 1, 1, 1, 1, 1, 1, 2, True, "1", "none"]),
    mapping(
        defaults=mapping(action=ACTIONS, normalise=STEPS, log=LOGS),
        points=st.dictionaries(KEYS, maybe(POINT), max_size=3),
        telemetry=mapping(spans=SPANS, max_value_length=st.integers(6, 10)),
        reload=mapping(mode=st.sampled_from(["live", "at_restart", "never"])),
    ),
)


def model_accepts(data: Any) -> bool:
    try:
        validate(data)
    except InvalidPolicyError:
        return False
    return True


@settings(max_examples=1500, deadline=None)
@given(POLICIES)
@example({"version": 1})
@example({"version": 1, "points": {"srt.*": {"action": "fallback", "fallback": None}}})
@example({"version": 1, "points": {"srt.*": {"action": "fallback"}}})
@example({"version": 1, "points": {"srt.*": {"when": {"rank": []}}}})
def test_schema_and_model_agree(data: Any) -> None:
    found = [error.message for error in VALIDATOR.iter_errors(data)]
    assert (not found) == model_accepts(data), found


def test_generated_policies_are_of_both_kinds() -> None:
    seen = {True: 0, False: 0}

    @settings(max_examples=300, deadline=None, database=None)
    @given(POLICIES)
    def count(data: Any) -> None:
        seen[model_accepts(data)] += 1

    count()
    assert min(seen.values()) > 20


def test_the_shipped_file_is_the_models() -> None:
    assert shipped() == render(), "run: sgguard schema > sgguard/policy.schema.json"


def test_it_is_a_schema_and_describes_every_key() -> None:
    schema = policy_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    models = [schema, *schema["$defs"].values()]
    for model in models:
        for name, field in model["properties"].items():
            assert field.get("description"), name
