"""SGLang's own GLM-Image transformer, tiny, on the CPU, for tests.

The model, its KV cache, its pipeline configuration and its guidance policy are the classes SGLang
ships; only their sizes are small and their weights random. Nothing here imports torch or SGLang
until a function is called, so a test chooses what is imported before them.

``prepare()`` sets the process up (every other function calls it), ``teardown()`` puts it back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from sglang.multimodal_gen.runtime.models.dits.glm_image import (
        GlmImageKVCache,
        GlmImageTransformer2DModel,
    )

CODEBOOK_SIZE = 64
TEXT_EMBED_DIM = 16
LATENT_CHANNELS = 16
PATCH_SIZE = 2
# Pixels for one latent, as in SGLang's GLM-Image VAE configuration.
VAE_SCALE = 8
# Height and width in pixels. The condition image is smaller than the image being made, so the
# cached keys and the fresh ones differ in length and cannot be mixed up unnoticed.
IMAGE_SIZE = (64, 64)
CONDITION_SIZE = (32, 64)
TRAIN_TIMESTEPS = 1000
GUIDANCE_SCALE = 1.5

_prepared: contextlib.ExitStack | None = None


def prepare() -> None:
    """Set up what the transformer needs of the process; a second call does nothing."""
    global _prepared
    if _prepared is not None:
        return
    from sglang.multimodal_gen.runtime.platforms import current_platform

    if not current_platform.is_cpu():
        raise RuntimeError(
            "tiny_glm needs SGLang to see a CPU-only machine: with a GPU visible, SGLang's layers "
            "choose GPU kernels when they are built and then refuse CPU tensors"
        )
    # A step that fails leaves nothing of the earlier ones behind.
    with contextlib.ExitStack() as stack:
        stack.enter_context(_server_args())
        stack.enter_context(_process_group())
        stack.enter_context(_kernel_stand_ins())
        _prepared = stack.pop_all()


def teardown() -> None:
    """Undo ``prepare()``; without one, do nothing. Models built before are of no more use."""
    global _prepared
    if _prepared is not None:
        stack, _prepared = _prepared, None
        stack.close()


@contextlib.contextmanager
def _server_args() -> Iterator[None]:
    from sglang.multimodal_gen.runtime.server_args import (
        ServerArgs,
        server_args,
        set_global_server_args,
    )

    # A real ServerArgs wants a model on disk and a machine to tune itself for, so the layers get
    # its defaults in a plain namespace. The parallel degrees, None by default, are what that
    # tuning would settle on for one process.
    values: dict[str, Any] = {}
    for field in dataclasses.fields(ServerArgs):
        if field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
    for degree in (
        "tp_size",
        "sp_degree",
        "ulysses_degree",
        "ring_degree",
        "kv_gather_degree",
        "cfg_parallel_degree",
    ):
        values[degree] = 1
    values["enable_cfg_parallel"] = False
    before = server_args._global_server_args
    set_global_server_args(SimpleNamespace(**values))
    try:
        yield
    finally:
        set_global_server_args(before)


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    from sglang.multimodal_gen.runtime.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        # Someone else's group; it is theirs to end.
        yield
        return
    # A file, not a port, for the one process to meet itself: two test runs at once cannot collide.
    # Gloo is kept to the loopback interface, so a host name that does not resolve does no harm.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in alone.items():
            patch.setenv(name, value)
        try:
            parallel_state.maybe_init_distributed_environment_and_model_parallel(
                tp_size=1,
                sp_size=1,
                distributed_init_method=(Path(folder) / "store").as_uri(),
            )
            yield
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


@contextlib.contextmanager
def _kernel_stand_ins() -> Iterator[None]:
    """Replace two compiled kernels; the only imitation in this module.

    SGLang's fused norm layers have a CPU path that calls into the separate kernel package. The
    build of that package on PyPI is for CUDA, and its CPU build is not there, so the op is missing
    on a CPU-only set-up like this one. The layer also has a native path in plain torch, which is
    what runs here; the one step that path leaves to a kernel (a GPU one), the scale and shift, is
    written out. Neither touches the KV cache or its mode.
    """
    from sglang.multimodal_gen.runtime.layers import layernorm

    layer = layernorm._ScaleResidualNormScaleShift
    with pytest.MonkeyPatch.context() as patch:
        # Unwrapped, because SGLang has torch compile the native path, which would cost a C++
        # compiler and many seconds for the same arithmetic.
        patch.setattr(layer, "forward_cpu", inspect.unwrap(layer.forward_native))
        patch.setattr(layernorm, "fuse_scale_shift_kernel", _scale_and_shift)
        yield


def _scale_and_shift(n: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return n * (1 + scale) + shift


def build(num_layers: int = 2, seed: int = 0) -> GlmImageTransformer2DModel:
    """SGLang's transformer in eval mode; the same seed gives the same weights."""
    prepare()
    import torch
    from sglang.multimodal_gen.configs.models.dits.glmimage import (
        GlmImageArchConfig,
        GlmImageDitConfig,
    )
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageTransformer2DModel

    arch = GlmImageArchConfig(
        num_layers=num_layers,
        attention_head_dim=32,
        num_attention_heads=2,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=CODEBOOK_SIZE,
        text_embed_dim=TEXT_EMBED_DIM,
        time_embed_dim=16,
        patch_size=PATCH_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
    )
    model = GlmImageTransformer2DModel(GlmImageDitConfig(arch_config=arch), {})
    # SGLang allocates most weights uninitialised and expects a checkpoint to fill them. Scaled by
    # their input width, random ones keep activations near one, so that every layer, and the
    # attention to cached keys, still shows in the output.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values / parameter.shape[-1] ** 0.5)
    return model.eval()


def new_cache(model: GlmImageTransformer2DModel) -> GlmImageKVCache:
    """An empty cache for the model, made the way the pipeline makes one for each request."""
    from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache

    return GlmImageKVCache(num_layers=model.config.num_layers)


def inputs(mode: str = "read", index: int = 0, seed: int = 0) -> dict[str, Any]:
    """The model's arguments, but for the cache, in a forward that the pipeline runs in ``mode``.

    "write" is the forward of condition image ``index``; "read" is the conditional and "skip" the
    unconditional branch of step ``index`` of four. Step inputs all start from the first latents.
    """
    if mode == "write":
        return _condition_inputs(index, seed)
    if mode not in ("read", "skip"):
        raise ValueError(f"the pipeline runs no forward in mode {mode!r}")
    request = _request(seed)
    conditional = mode == "read"
    return {
        "hidden_states": request.latents,
        "timestep": _timesteps(4)[index].repeat(1),
        "encoder_hidden_states": (
            request.prompt_embeds if conditional else request.negative_prompt_embeds
        ),
        "prior_token_id": request.prior_token_id,
        "prior_token_drop": (
            request.prior_token_drop_cond if conditional else request.prior_token_drop_uncond
        ),
        "target_size": request.target_size,
        "crop_coords": request.crop_coords,
    }


def forward(
    model: GlmImageTransformer2DModel,
    inputs: dict[str, Any],
    cache: GlmImageKVCache | None,
    mode: str | None,
    *,
    current_timestep: int = 1,
) -> torch.Tensor:
    """Call the model once, as the pipeline does: through ``__call__``, all arguments by name."""
    prepare()
    import torch
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    with (
        torch.no_grad(),
        set_forward_context(current_timestep=current_timestep, attn_metadata=None),
    ):
        output: torch.Tensor = model(**inputs, kv_caches=cache, kv_caches_mode=mode)
    return output


def denoise(
    model: GlmImageTransformer2DModel,
    cache: GlmImageKVCache,
    steps: int = 4,
    condition_images: int = 1,
    *,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Run one request as SGLang's pipeline does; return the output of every forward in order.

    That is one output for each condition image (the pipeline throws these away), then two for
    each step: conditional, unconditional. Without condition images the pipeline passes no cache to
    the model at all. It clears the cache at the end either way. What each branch is given and the
    clearing are decided by SGLang's own pipeline configuration, not restated here.
    """
    prepare()
    import torch
    from sglang.multimodal_gen.configs.pipeline_configs.glm_image import GlmImagePipelineConfig

    config = GlmImagePipelineConfig()
    request = _request(seed)
    request.kv_caches = cache
    if condition_images:
        request.prior_token_image_ids = []
    outputs = []
    for index in range(condition_images):
        condition = _condition_inputs(index, seed)
        request.prior_token_image_ids.append(condition["prior_token_id"])
        outputs.append(forward(model, condition, cache, "write"))

    # The configuration names these arguments once for each branch, before the first step.
    device, dtype = torch.device("cpu"), torch.float32
    conditional = config.prepare_pos_cond_kwargs(request, device, model.rotary_emb, dtype)
    unconditional = config.prepare_neg_cond_kwargs(request, device, model.rotary_emb, dtype)
    conditional["encoder_hidden_states"] = config.get_pos_prompt_embeds(request)
    unconditional["encoder_hidden_states"] = config.get_neg_prompt_embeds(request)
    policy = config.cfg_policy.build(request, {}, conditional, unconditional)

    latents = request.latents
    timesteps = _timesteps(steps)
    ends = torch.cat([timesteps[1:], torch.zeros(1)])
    for step in range(steps):
        predictions = []
        for branch in policy.branches:
            branch.configure_batch(request)
            arguments = dict(branch.kwargs)
            step_cache = arguments.pop("kv_caches", None)
            mode = arguments.pop("kv_caches_mode", None)
            arguments |= {"hidden_states": latents, "timestep": timesteps[step].repeat(1)}
            predictions.append(forward(model, arguments, step_cache, mode, current_timestep=step))
        outputs += predictions
        noise = policy.combine(predictions, request, request.guidance_scale, config)
        # One Euler step of flow matching.
        latents = latents + (ends[step] - timesteps[step]) / TRAIN_TIMESTEPS * noise

    config.post_denoising_loop(latents, request)
    return outputs


def _timesteps(steps: int) -> torch.Tensor:
    import torch

    return torch.linspace(TRAIN_TIMESTEPS, 1, steps + 1)[:-1].floor()


def _tokens(size: tuple[int, int]) -> int:
    return size[0] * size[1] // (VAE_SCALE * PATCH_SIZE) ** 2


def _latents(size: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    import torch

    shape = (1, LATENT_CHANNELS, size[0] // VAE_SCALE, size[1] // VAE_SCALE)
    return torch.randn(shape, generator=generator)


def _condition_inputs(index: int, seed: int) -> dict[str, Any]:
    import torch

    # Far from the request's seeds, and different for every image of one request.
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + index)
    prior = torch.randint(CODEBOOK_SIZE, (1, _tokens(CONDITION_SIZE)), generator=generator)
    return {
        "hidden_states": _latents(CONDITION_SIZE, generator),
        # A condition image is seen without text, and noise free: at timestep 0.
        "encoder_hidden_states": torch.zeros(1, 0, TEXT_EMBED_DIM),
        "prior_token_id": prior,
        "prior_token_drop": torch.zeros_like(prior, dtype=torch.bool),
        "timestep": torch.zeros(1),
        "target_size": torch.tensor([CONDITION_SIZE], dtype=torch.float32),
        "crop_coords": torch.zeros(1, 2),
        "attention_kwargs": {},
    }


def _request(seed: int) -> SimpleNamespace:
    """What the stages before denoising would leave on a request without condition images."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    prior = torch.randint(CODEBOOK_SIZE, (1, _tokens(IMAGE_SIZE)), generator=generator)
    return SimpleNamespace(
        height=IMAGE_SIZE[0],
        width=IMAGE_SIZE[1],
        latents=_latents(IMAGE_SIZE, generator),
        prompt_embeds=[torch.randn(1, 5, TEXT_EMBED_DIM, generator=generator)],
        negative_prompt_embeds=[torch.randn(1, 2, TEXT_EMBED_DIM, generator=generator)],
        prior_token_id=prior,
        prior_token_drop_cond=torch.zeros_like(prior, dtype=torch.bool),
        prior_token_drop_uncond=torch.ones_like(prior, dtype=torch.bool),
        prior_token_image_ids=None,
        target_size=torch.tensor([IMAGE_SIZE], dtype=torch.float32),
        crop_coords=torch.zeros(1, 2),
        kv_caches=None,
        do_classifier_free_guidance=True,
        guidance_scale=GUIDANCE_SCALE,
        cfg_normalization=0,
        guidance_rescale=0.0,
    )
