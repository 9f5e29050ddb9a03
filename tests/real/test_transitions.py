"""The tiny real GLM-Image transformer: which transitions are seen, and how they are told."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_glm

pytestmark = pytest.mark.sglang

POINT = "glm_image.kv_cache.mode"

# One condition image, then the conditional and the unconditional branch of four steps.
ONE_IMAGE = [
    ("none", "write"),
    ("write", "read"),
    *[pair for _ in range(3) for pair in (("read", "skip"), ("skip", "read"))],
    ("read", "skip"),
    ("skip", "none"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    tiny_glm.prepare()
    yield tiny_glm.build()
    tiny_glm.teardown()


def test_every_transition_of_one_image(recorded: Any, model: Any) -> None:
    recorded.install()
    tiny_glm.denoise(model, tiny_glm.new_cache(model), steps=4, condition_images=1)
    assert recorded.transitions() == ONE_IMAGE


def test_span_attributes(recorded: Any, model: Any) -> None:
    recorded.install()
    tiny_glm.denoise(model, tiny_glm.new_cache(model), steps=4, condition_images=1)
    first, second, *_, last = recorded.spans()
    attributes = dict(first.attributes)
    line = attributes.pop("code.line.number")
    path = attributes.pop("code.file.path")
    assert attributes == {
        "sgguard.point": POINT,
        "sgguard.implementation": "sglang",
        "sgguard.method": "set_mode",
        "sgguard.mode.from": "none",
        "sgguard.mode.to": "write",
        "code.function.name": "sglang.multimodal_gen.runtime.models.dits.glm_image."
        "GlmImageTransformer2DModel.forward",
    }
    assert path.endswith("sglang/multimodal_gen/runtime/models/dits/glm_image.py")
    with open(path) as source:
        assert "set_mode(" in source.read().splitlines()[line - 1]
    assert second.attributes["sgguard.mode.seconds"] > 0
    assert last.attributes["sgguard.method"] == "clear"
    assert all(span.status.is_unset for span in recorded.spans())
    assert {span.instrumentation_scope.name for span in recorded.spans()} == {"sgguard"}


def test_metric_points(recorded: Any, model: Any) -> None:
    recorded.install()
    tiny_glm.denoise(model, tiny_glm.new_cache(model), steps=4, condition_images=1)
    assert recorded.metric("sgguard.calls") == {("accepted", POINT): 9}
    assert recorded.metric("sgguard.transitions") == {
        ("none", "write", POINT): 1,
        ("write", "read", POINT): 1,
        ("read", "skip", POINT): 4,
        ("skip", "read", POINT): 3,
        ("skip", "none", POINT): 1,
    }
    # How long each mode was on: "write" once, "read" and "skip" in each of four steps.
    assert recorded.metric("sgguard.mode.duration") == {
        ("write", POINT): 1,
        ("read", POINT): 4,
        ("skip", POINT): 4,
    }
    assert recorded.metric("sgguard.invalid_values") == {}
    assert recorded.metric("sgguard.guard_errors") == {}


def test_several_condition_images_repeat_a_mode(recorded: Any, model: Any) -> None:
    """A repeated mode is a call, not a transition."""
    recorded.install()
    tiny_glm.denoise(model, tiny_glm.new_cache(model), steps=1, condition_images=3)
    assert recorded.transitions()[:2] == [("none", "write"), ("write", "read")]
    assert recorded.metric("sgguard.calls") == {("accepted", POINT): 5}


def test_none_is_a_transition(recorded: Any, model: Any) -> None:
    recorded.install()
    cache = tiny_glm.new_cache(model)
    cache.set_mode("read")
    cache.set_mode(None)
    cache.set_mode(None)
    cache.clear()
    assert recorded.transitions() == [("none", "read"), ("read", "none")]


def _forward_read(model: Any, mode: str) -> Any:
    cache = tiny_glm.new_cache(model)
    tiny_glm.forward(model, tiny_glm.inputs("write"), cache, "write")
    return tiny_glm.forward(model, tiny_glm.inputs("read"), cache, mode)


def test_invalid_mode_under_observe(recorded: Any, model: Any) -> None:
    recorded.install()
    with pytest.raises(ValueError, match="Invalid mode: READ, must be one of") as caught:
        _forward_read(model, "READ")
    assert "  points: {glm_image.kv_cache.mode: {action: normalise}}" in caught.value.__notes__[0]
    (attributes,) = recorded.invalid()
    assert attributes["sgguard.outcome"] == "refused"
    assert attributes["sgguard.value.received"] == "'READ'"
    assert attributes["error.type"] == "ValueError"
    assert attributes["code.function.name"].endswith("GlmImageTransformer2DModel.forward")
    # Who sent it is further up than SGLang's forward; torch's frames between are left out.
    assert "tiny_glm.forward" in attributes["code.stacktrace"].splitlines()[1]
    (span,) = [s for s in recorded.spans() if s.name == "sgguard.invalid_value"]
    assert not span.status.is_ok
    assert not span.status.is_unset


def test_invalid_mode_normalised_gives_the_tensor_of_the_right_word(
    recorded: Any, model: Any
) -> None:
    expected = _forward_read(model, "read")
    recorded.install({"points": {POINT: {"action": "normalise"}}})
    assert _forward_read(model, "READ").equal(expected)
    (attributes,) = recorded.invalid()
    assert attributes["sgguard.outcome"] == "normalised"
    assert attributes["sgguard.step"] == "case"
    assert attributes["sgguard.value.applied"] == "'read'"
    assert "error.type" not in attributes
    assert all(span.status.is_unset for span in recorded.spans())
    assert recorded.transitions() == [("none", "write"), ("write", "read")]
    assert recorded.metric("sgguard.calls") == {("accepted", POINT): 1, ("normalised", POINT): 1}


def test_invalid_mode_falls_back(recorded: Any, model: Any) -> None:
    expected = _forward_read(model, "skip")
    recorded.install({"points": {POINT: {"action": "fallback", "fallback": "skip"}}})
    assert _forward_read(model, "recall").equal(expected)
    (attributes,) = recorded.invalid()
    assert attributes["sgguard.outcome"] == "fell_back"
    assert attributes["sgguard.value.applied"] == "'skip'"
    assert recorded.transitions() == [("none", "write"), ("write", "skip")]


def test_a_cache_is_not_kept_alive_nor_changed(recorded: Any, model: Any) -> None:
    bare = set(vars(tiny_glm.new_cache(model)))
    recorded.install()
    cache = tiny_glm.new_cache(model)
    cache.set_mode("write")
    cache.set_mode("read")
    assert set(vars(cache)) == bare
    with pytest.raises(ValueError, match="Invalid mode"):
        cache.set_mode("x")
    watch = weakref.ref(cache)
    del cache
    gc.collect()
    assert watch() is None
    from sgguard.runtime import runtime

    assert [len(guard.clock) for guard in runtime.hooks.guards()] == [0] * len(
        runtime.hooks.guards()
    )


def test_diffusers_cache_is_the_same_point(recorded: Any) -> None:
    """Under ``backend=diffusers`` the class of diffusers runs; the span says so."""
    from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache

    recorded.install({"points": {POINT: {"action": "normalise"}}})
    cache = GlmImageKVCache(num_layers=2)
    cache.set_mode("write")
    cache.next_sample()
    cache.set_mode(" READ ")
    cache.clear()
    assert recorded.transitions() == [("none", "write"), ("write", "read"), ("read", "none")]
    assert {s.attributes["sgguard.implementation"] for s in recorded.spans()} == {"diffusers"}
    assert recorded.invalid()[0]["sgguard.outcome"] == "normalised"


def test_cache_without_layers_is_tracked_by_its_calls(recorded: Any) -> None:
    """No layer holds a mode to read: the guard goes by what SGLang accepted."""
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    recorded.install()
    cache = GlmImageKVCache(num_layers=0)
    cache.set_mode("write")
    cache.set_mode("write")
    cache.set_mode(mode="read")
    assert recorded.transitions() == [("unknown", "write"), ("write", "read")]
