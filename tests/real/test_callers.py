"""SGLang's own callers of the guarded functions: the places where a real value comes in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.sglang

REPAIR = {"defaults": {"action": "normalise"}}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model directory with what SGLang looks for to tell what it is, and no weights."""
    for part in ("transformer", "vae"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    index = {"_class_name": "GlmImagePipeline", "_diffusers_version": "0.37.0"}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    return str(tmp_path)


def test_server_args_from_kwargs(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    from sglang.multimodal_gen.runtime.server_args import Backend, ServerArgs
    from sglang.multimodal_gen.runtime.server_args import server_args as module

    # What follows the conversion looks at the model, the network and the GPU: not this test's.
    monkeypatch.setattr(ServerArgs, "__post_init__", lambda self: None)
    recorded.install()
    with pytest.raises(ValueError, match="Invalid backend: Diffusers ") as caught:
        ServerArgs.from_kwargs(model_path=model, backend="Diffusers ")
    assert "action: normalise" in caught.value.__notes__[0]
    recorded.install(REPAIR)
    args = ServerArgs.from_kwargs(model_path=model, backend="Diffusers ", disagg_role=" Denoiser")
    assert args.backend is Backend.DIFFUSERS
    assert args.disagg_role.value == "denoiser"
    assert [(a["sgguard.point"], a["sgguard.outcome"]) for a in recorded.invalid()] == [
        ("diffusion.backend", "refused"),
        ("diffusion.backend", "normalised"),
        ("diffusion.role", "normalised"),
    ]
    assert {a["code.file.path"] for a in recorded.invalid()} == {module.__file__}
    assert {a["code.function.name"].rpartition(".")[2] for a in recorded.invalid()} == {
        "from_kwargs"
    }


def test_get_model_info(recorded: Any, model: str) -> None:
    from sglang.multimodal_gen import registry

    recorded.install(REPAIR)
    assert registry.get_model_info(model, backend="Diffusers ") == registry.get_model_info(
        model, backend="diffusers"
    )
    (attributes,) = recorded.invalid()
    assert attributes["sgguard.outcome"] == "normalised"
    assert attributes["code.function.name"] == "sglang.multimodal_gen.registry.get_model_info"


def test_derive_pool_result_endpoint(recorded: Any) -> None:
    from sglang.multimodal_gen.runtime.server_args.disagg import DisaggServerArgsMixin

    args = SimpleNamespace(
        disagg_role="DECODER ",
        disagg_server_addr="tcp://127.0.0.1:7000",
        DISAGG_RESULT_PORT_OFFSETS=DisaggServerArgsMixin.DISAGG_RESULT_PORT_OFFSETS,
    )
    recorded.install()
    with pytest.raises(ValueError, match="Invalid role"):
        DisaggServerArgsMixin.derive_pool_result_endpoint(args)
    recorded.install(REPAIR)
    endpoint = DisaggServerArgsMixin.derive_pool_result_endpoint(args)
    args.disagg_role = "decoder"
    assert endpoint == DisaggServerArgsMixin.derive_pool_result_endpoint(args)
    assert recorded.invalid()[-1]["sgguard.value.applied"] == "'DECODER'"
    assert recorded.invalid()[-1]["code.function.name"].endswith("derive_pool_result_endpoint")
