"""What a refused value becomes, on SGLang's own functions."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sgguard
from sgguard.hooks import GuardWrapper

pytestmark = pytest.mark.sglang

QUIET = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def enums() -> dict[str, Any]:
    """The enum points that SGLang 0.5.23 has, by id."""
    from sglang.multimodal_gen.runtime.disaggregation.roles import RoleType
    from sglang.multimodal_gen.runtime.server_args import Backend
    from sglang.srt.layers.cp.base import ContextParallelStrategyKind, CPAttentionBackendKind
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return {
        "diffusion.backend": Backend,
        "diffusion.role": RoleType,
        "srt.speculative_algorithm": SpeculativeAlgorithm,
        "srt.cp_strategy": ContextParallelStrategyKind,
        "srt.cp_attention_backend": CPAttentionBackendKind,
    }


def new_cache() -> Any:
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    return GlmImageKVCache(num_layers=2)


def bare(cls: Any) -> Callable[[Any], Any]:
    """SGLang's own from_string, past any guard."""
    raw = vars(cls)["from_string"]
    while type(raw) is GuardWrapper:
        raw = raw.__wrapped__
    return raw.__get__(None, cls)


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return ("result", call())
    except Exception as error:
        return (type(error), str(error), error.args)


POINTS = tuple(
    f"{head}.{tail}"
    for head, tails in {
        "diffusion": ("backend", "role"),
        "srt": ("speculative_algorithm", "cp_strategy", "cp_attention_backend"),
    }.items()
    for tail in tails
)
WORDS = st.sampled_from(
    ["auto", "Diffusers ", "denoising", "zigzag", "NEXTN", "trtllm_mha", "read", "", "none", "dsa"]
)
TEXTS = st.one_of(st.text(), WORDS, WORDS.map(str.upper), WORDS.map(lambda w: f" '{w}' "))


@pytest.mark.parametrize("point", POINTS)
def test_observe_is_exactly_sglang(recorded: Any, point: str) -> None:
    recorded.install()
    cls = enums()[point]

    @QUIET
    @given(st.one_of(TEXTS, st.none(), st.integers(), st.booleans(), st.lists(st.text())))
    def check(value: Any) -> None:
        assert outcome(lambda: cls.from_string(value)) == outcome(lambda: bare(cls)(value))

    check()


@pytest.mark.parametrize("point", POINTS)
def test_normalise_only_ever_helps(recorded: Any, point: str) -> None:
    """What SGLang accepts is not touched; what is repaired is something SGLang accepts."""
    recorded.install({"points": {point: {"action": "normalise"}}})
    cls = enums()[point]

    @QUIET
    @given(TEXTS)
    def check(value: str) -> None:
        without = outcome(lambda: bare(cls)(value))
        seen = len(recorded.spans())
        result = outcome(lambda: cls.from_string(value))
        if without[0] == "result" or result[0] != "result":
            assert result == without
        else:
            applied = recorded.spans()[seen].attributes["sgguard.value.applied"]
            assert bare(cls)(eval(applied)) == result[1]  # noqa: S307 - a repr of our own

    check()


@QUIET
@given(value=st.one_of(TEXTS, st.none(), st.integers(), st.lists(st.text())))
def test_observe_is_exactly_sglang_for_modes(recorded: Any, value: Any) -> None:
    recorded.install()
    cache, plain = new_cache(), new_cache()
    raw = vars(type(plain))["set_mode"].__wrapped__
    assert outcome(lambda: cache.set_mode(value)) == outcome(lambda: raw(plain, value))
    assert [c.mode for c in cache.caches] == [c.mode for c in plain.caches]


@QUIET
@given(value=TEXTS)
def test_normalised_mode_is_one_of_sglangs(recorded: Any, value: str) -> None:
    recorded.install({"points": {"glm_image.kv_cache.mode": {"action": "normalise"}}})
    cache = new_cache()
    try:
        cache.set_mode(value)
    except ValueError:
        assert cache[0].mode is None
    else:
        assert cache[0].mode in ("write", "read", "skip")
        assert value.strip(" '").casefold() == cache[0].mode


def test_the_very_same_exception_object(recorded: Any) -> None:
    """An AROUND hook below the guard sees the object that the caller gets."""
    backend = enums()["diffusion.backend"]
    seen: list[BaseException] = []
    raw = vars(backend)["from_string"]

    def watching(cls: Any, value: Any) -> Any:
        try:
            return raw.__func__(cls, value)
        except ValueError as error:
            seen.append(error)
            raise

    watching.__wrapped__ = raw.__func__  # type: ignore[attr-defined]
    backend.from_string = classmethod(watching)
    try:
        recorded.install()
        with pytest.raises(ValueError, match="Invalid backend: trt") as caught:
            backend.from_string("trt")
        assert caught.value is seen[0]
    finally:
        sgguard.uninstall()
        backend.from_string = raw
    assert vars(backend)["from_string"] is raw


@pytest.mark.parametrize(
    ("point", "value", "listed", "advice"),
    [
        ("diffusion.backend", "Diffusers ", "'auto', 'sglang', 'diffusers'", "action: normalise}"),
        ("diffusion.role", "denoiserr", "'denoising'", 'aliases: {"denoiserr": denoiser}'),
        ("srt.speculative_algorithm", "xyz", "'NEXTN', None", "fallback: VALUE"),
        ("srt.cp_strategy", "ZigZag", "'zigzag', 'interleave'.", "action: normalise}"),
        ("srt.cp_attention_backend", "dsv5", "'trtllm_mha', 'dsv4'.", "aliases: {"),
    ],
)
def test_the_note(recorded: Any, point: str, value: str, listed: str, advice: str) -> None:
    recorded.install()
    with pytest.raises(ValueError, match=r".+") as caught:
        enums()[point].from_string(value)
    (note,) = caught.value.__notes__
    assert listed in note
    assert advice in note
    assert f"points: {{{point}: " in note


def test_plugin_algorithms_are_named_too(recorded: Any) -> None:
    """SGLang's speculative algorithms can be registered by plug-ins; the note knows them."""
    from sglang.srt.speculative import spec_registry

    algorithm = enums()["srt.speculative_algorithm"]
    algorithm.register("SGGUARD_TEST")(lambda server_args: None)
    try:
        recorded.install({"points": {"srt.speculative_algorithm": {"action": "normalise"}}})
        with pytest.raises(ValueError, match="Unknown speculative") as caught:
            algorithm.from_string("nothing like it")
        assert "'SGGUARD_TEST'" in caught.value.__notes__[0]
        assert algorithm.from_string("sgguard test").name == "SGGUARD_TEST"
    finally:
        registry = next(
            v for v in vars(spec_registry).values() if isinstance(v, dict) and "SGGUARD_TEST" in v
        )
        del registry["SGGUARD_TEST"]


def test_attribute_error_is_a_refusal(recorded: Any) -> None:
    recorded.install({"points": {"diffusion.backend": {"action": "fallback", "fallback": "auto"}}})
    backend = enums()["diffusion.backend"]
    assert backend.from_string(None) is backend.AUTO
    assert backend.from_string(3) is backend.AUTO
    assert [a["sgguard.value.received"] for a in recorded.invalid()] == ["None", "3"]


def test_deeper_errors_are_not_refusals(recorded: Any) -> None:
    """A value whose own code raises is no invalid value: nothing is counted or repaired."""

    class Loud(str):
        def lower(self) -> str:
            raise ValueError("the value's own trouble")

    recorded.install({"points": {"diffusion.role": {"action": "fallback", "fallback": "server"}}})
    with pytest.raises(ValueError, match="own trouble") as caught:
        enums()["diffusion.role"].from_string(Loud("server"))
    assert not hasattr(caught.value, "__notes__")
    assert recorded.spans() == []


@pytest.mark.parametrize("arguments", [((), {}), (("a", "b"), {}), ((), {"wrong": "a"})])
def test_wrong_arguments_are_sglangs_type_error(
    recorded: Any, arguments: tuple[Any, dict[str, Any]]
) -> None:
    args, kwargs = arguments
    for point, cls in enums().items():
        recorded.install({"points": {point: {"action": "normalise"}}})
        expected = outcome(lambda cls=cls: bare(cls)(*args, **kwargs))
        assert expected[0] is TypeError
        assert outcome(lambda cls=cls: cls.from_string(*args, **kwargs)) == expected
    cache = new_cache()
    raw = vars(type(cache))["set_mode"].__wrapped__
    expected = outcome(lambda: raw.__get__(cache)(*args, **kwargs))
    assert outcome(lambda: cache.set_mode(*args, **kwargs)) == expected
    assert recorded.spans() == []


def test_keyword_and_positional(recorded: Any) -> None:
    recorded.install({"defaults": {"action": "normalise"}})
    found = enums()
    assert found["diffusion.backend"].from_string(value=" AUTO").value == "auto"
    assert found["srt.speculative_algorithm"].from_string(name="eagle ").name == "EAGLE"
    cache = new_cache()
    cache.set_mode(mode="Skip")
    type(cache).set_mode(cache, "READ")
    type(cache).set_mode(cache, mode="WRITE")
    type(cache).set_mode(self=cache, mode="skip")
    assert recorded.transitions() == [
        ("none", "skip"),
        ("skip", "read"),
        ("read", "write"),
        ("write", "skip"),
    ]


class Mode(enum.Enum):
    """A caller's own enum, whose members are not strings."""

    READ = "read"
    SKIP = " Skip"
    OTHER = 7


def test_enum_members(recorded: Any) -> None:
    found = enums()
    recorded.install({"defaults": {"action": "normalise"}})
    cache = new_cache()
    cache.set_mode(Mode.READ)
    assert cache[0].mode == "read"
    cache.set_mode(Mode.SKIP)
    assert cache[0].mode == "skip"
    with pytest.raises(ValueError, match="Invalid mode"):
        cache.set_mode(Mode.OTHER)
    # Members of the guarded enum come back as themselves, or are refused as before.
    strategy, algorithm = found["srt.cp_strategy"], found["srt.speculative_algorithm"]
    assert strategy.from_string(strategy.ZIGZAG) is strategy.ZIGZAG
    assert algorithm.from_string(algorithm.EAGLE3) is algorithm.EAGLE3
    with pytest.raises(ValueError, match="Unknown cp_strategy"):
        strategy.from_string(strategy.NONE)
    kinds = found["srt.cp_attention_backend"]
    assert kinds.from_string(kinds.DSV4) is kinds.DSV4
    with pytest.raises(ValueError, match="Unsupported"):  # "fa3", "fa4" or "flashinfer"?
        kinds.from_string(kinds.FLASH_ATTENTION)


def test_order_of_normalising(recorded: Any) -> None:
    """The first step that SGLang accepts is the one that is used and named."""
    recorded.install(
        {"points": {"glm_image.kv_cache.mode": {"action": "normalise", "aliases": {"A-b": "skip"}}}}
    )
    cache = new_cache()
    for value in (Mode.READ, " 'read' ", "ＲＥＡＤ", "Re ad", "a_B"):
        with contextlib.suppress(ValueError):
            cache.set_mode(value)
    assert [a.get("sgguard.step") for a in recorded.invalid()] == [
        "enum_value",
        "white_space",
        "case",
        None,  # a space inside a word is no separator SGLang has there
        "aliases",
    ]
    assert enums()["srt.cp_attention_backend"] is not None


def test_separators(recorded: Any) -> None:
    recorded.install({"points": {"srt.cp_attention_backend": {"action": "normalise"}}})
    kinds = enums()["srt.cp_attention_backend"]
    for spelling in ("trtllm-mha", "TRTLLM mha", " trtllm - mha"):
        assert kinds.from_string(spelling) is kinds.TRTLLM_MHA
    assert {a["sgguard.step"] for a in recorded.invalid()} == {"separators"}


def test_one_log_line_a_minute(
    recorded: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgguard.runtime import runtime

    recorded.install({"points": {"glm_image.kv_cache.mode": {"action": "normalise"}}})
    cache = new_cache()
    with caplog.at_level(logging.WARNING, "sgguard"):
        for _ in range(5):
            cache.set_mode("READ")
        monkeypatch.setattr(runtime.recorder.limiter, "interval", 0.0)
        cache.set_mode("Read")
        monkeypatch.setattr(runtime.recorder.limiter, "interval", 60.0)
    first, second = [r.getMessage() for r in caplog.records]
    assert "'READ' at glm_image.kv_cache.mode normalised to 'read' (step case)" in first
    assert f"{__file__}:" in first
    assert "'Read'" in second
    assert len(recorded.invalid()) == 6  # the log is limited, spans and counts are not


def test_a_hostile_repr_cannot_recurse_or_escape(
    recorded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cache = new_cache()

    class Hostile:
        def __repr__(self) -> str:
            cache.set_mode("\x1b[31m\nWARNING: forged")
            return "\x1b[31m\nWARNING: forged"

    recorded.install()
    with pytest.raises(ValueError, match="Invalid mode"):
        cache.set_mode(Hostile())
    assert all("\n" not in r.getMessage() for r in caplog.records)
    assert all("\x1b" not in r.getMessage() for r in caplog.records)


def test_a_tensor_is_described_not_printed(recorded: Any) -> None:
    import torch

    recorded.install()
    with pytest.raises(Exception, match=r".+"):
        new_cache().set_mode(torch.zeros(2, 3, device="meta"))
    with pytest.raises(AttributeError):
        enums()["diffusion.backend"].from_string(torch.zeros(2, 3, device="meta"))
    assert recorded.invalid()[-1]["sgguard.value.received"] == (
        "Tensor(shape=(2, 3), dtype=torch.float32, device=meta)"
    )
