"""The tiny GLM-Image harness drives SGLang's real code; sgguard has no part in these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_glm

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from sglang.multimodal_gen.runtime.models.dits.glm_image import (
        GlmImageKVCache,
        GlmImageTransformer2DModel,
    )

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def model() -> Iterator[GlmImageTransformer2DModel]:
    tiny_glm.prepare()
    yield tiny_glm.build()
    tiny_glm.teardown()


@pytest.fixture
def cache(model: GlmImageTransformer2DModel) -> GlmImageKVCache:
    return tiny_glm.new_cache(model)


def written(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache, images: int = 1
) -> GlmImageKVCache:
    for index in range(images):
        tiny_glm.forward(model, tiny_glm.inputs("write", index), cache, "write")
    return cache


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    import torch

    return torch.equal(first, second)


def calls_of(model: GlmImageTransformer2DModel) -> tuple[list[dict[str, Any]], Any]:
    """Note the arguments of every call. A torch hook sees them only if the model is called as a
    module, not through ``forward``."""
    calls: list[dict[str, Any]] = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(kwargs), with_kwargs=True
    )
    return calls, hook


def test_importing_the_harness_imports_neither_torch_nor_sglang() -> None:
    code = "import sys, tiny_glm; sys.exit(bool({'torch', 'sglang'} & set(sys.modules)))"
    folder = Path(tiny_glm.__file__).parent
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False).returncode == 0


def test_the_classes_are_sglangs(model: GlmImageTransformer2DModel, cache: GlmImageKVCache) -> None:
    module = "sglang.multimodal_gen.runtime.models.dits.glm_image"
    assert (type(model).__module__, type(model).__name__) == (module, "GlmImageTransformer2DModel")
    assert (type(cache).__module__, type(cache).__name__) == (module, "GlmImageKVCache")
    assert "forward" not in vars(model)
    assert type(model).forward.__module__ == module
    assert type(cache).set_mode.__module__ == module
    assert not model.training


def test_parameter_count(model: GlmImageTransformer2DModel) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 155_072


def test_a_read_after_a_write_sees_the_condition_image(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    written(model, cache)
    step = tiny_glm.inputs("read")
    read = tiny_glm.forward(model, step, cache, "read")
    skip = tiny_glm.forward(model, step, cache, "skip")
    assert (read - skip).abs().max() > 0.1
    assert same(skip, tiny_glm.forward(model, step, None, None))


def test_a_read_sees_which_condition_images_were_written(
    model: GlmImageTransformer2DModel,
) -> None:
    step = tiny_glm.inputs("read")
    one, two = (
        tiny_glm.forward(model, step, written(model, tiny_glm.new_cache(model), images), "read")
        for images in (1, 2)
    )
    assert (one - two).abs().max() > 0.01


def test_sglang_lets_a_read_without_a_write_pass_as_a_skip(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    step = tiny_glm.inputs("read")
    assert same(
        tiny_glm.forward(model, step, cache, "read"), tiny_glm.forward(model, step, cache, "skip")
    )


def test_writes_add_up_and_reads_and_skips_store_nothing(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    written(model, cache, images=2)
    tokens = tiny_glm.inputs("write")["prior_token_id"].shape[1]
    stored = [layer.get() for layer in cache.caches]
    assert [(k.shape[1], v.shape[1]) for k, v in stored] == [(2 * tokens, 2 * tokens)] * 2
    for mode in ("read", "skip"):
        tiny_glm.forward(model, tiny_glm.inputs(mode), cache, mode)
        assert [layer.mode for layer in cache.caches] == [mode, mode]
    for (k, v), layer in zip(stored, cache.caches, strict=True):
        assert layer.k_cache is k
        assert layer.v_cache is v


def test_an_unknown_mode_raises_sglangs_error(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    written(model, cache)
    message = "^Invalid mode: READ, must be one of 'write', 'read', 'skip'$"
    with pytest.raises(ValueError, match=message):
        tiny_glm.forward(model, tiny_glm.inputs("read"), cache, "READ")
    assert [layer.mode for layer in cache.caches] == ["write", "write"]


def test_a_request_runs_write_then_read_and_skip_for_each_step_and_clears(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    calls, hook = calls_of(model)
    with hook:
        outputs = tiny_glm.denoise(model, cache, steps=3, condition_images=2)
    assert [call["kv_caches_mode"] for call in calls] == ["write"] * 2 + ["read", "skip"] * 3
    assert all(call["kv_caches"] is cache for call in calls)
    drops = [bool(call["prior_token_drop"].all()) for call in calls]
    assert drops == [call["kv_caches_mode"] == "skip" for call in calls]
    assert len(outputs) == len(calls)
    assert all(bool(output.isfinite().all()) for output in outputs)
    assert [(layer.get(), layer.mode) for layer in cache.caches] == [((None, None), None)] * 2


def test_a_request_without_condition_images_passes_no_cache(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    calls, hook = calls_of(model)
    with hook:
        tiny_glm.denoise(model, cache, steps=2, condition_images=0)
    assert [(call["kv_caches"], call["kv_caches_mode"]) for call in calls] == [(None, None)] * 4


def test_a_condition_image_changes_the_conditional_branch_from_the_first_step(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    with_image = tiny_glm.denoise(model, cache, steps=2)[1:]
    without = tiny_glm.denoise(model, cache, steps=2, condition_images=0)
    # The unconditional branch of the first step starts from the same latents and skips the cache.
    assert [same(a, b) for a, b in zip(with_image, without, strict=True)] == [
        False,
        True,
        False,
        False,
    ]


def test_outputs_are_reproducible_to_the_bit(
    model: GlmImageTransformer2DModel, cache: GlmImageKVCache
) -> None:
    first = tiny_glm.denoise(model, cache)
    again = tiny_glm.denoise(model, cache)
    rebuilt = tiny_glm.build()
    anew = tiny_glm.denoise(rebuilt, tiny_glm.new_cache(rebuilt))
    assert len(first) == 9
    for a, b, c in zip(first, again, anew, strict=True):
        assert same(a, b)
        assert same(a, c)


def test_seeds_choose_weights_and_inputs(model: GlmImageTransformer2DModel) -> None:
    step = tiny_glm.inputs("skip")
    output = tiny_glm.forward(model, step, None, None)
    assert not same(output, tiny_glm.forward(tiny_glm.build(seed=1), step, None, None))
    other_step = tiny_glm.inputs("skip", seed=1)
    assert not same(output, tiny_glm.forward(model, other_step, None, None))


def test_set_up_is_idempotent_and_undone(model: GlmImageTransformer2DModel) -> None:
    import torch
    from sglang.multimodal_gen.runtime.layers import layernorm
    from sglang.multimodal_gen.runtime.server_args import get_global_server_args

    step = tiny_glm.inputs("skip")
    before = tiny_glm.forward(model, step, None, None)
    stand_in = layernorm.fuse_scale_shift_kernel
    tiny_glm.prepare()
    assert layernorm.fuse_scale_shift_kernel is stand_in

    tiny_glm.teardown()
    tiny_glm.teardown()
    assert not torch.distributed.is_initialized()
    assert layernorm.fuse_scale_shift_kernel is not stand_in
    with pytest.raises(ValueError, match="not set"):
        get_global_server_args()

    tiny_glm.prepare()
    assert same(before, tiny_glm.forward(model, step, None, None))
