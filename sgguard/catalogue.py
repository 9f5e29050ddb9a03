"""The guard points, as data.

A point is a place where SGLang takes an enumerated value and raises when it is wrong. This
table is the only list of them: hooks, policy keys, telemetry, the README and the tests read
it. Module paths were read from the wheels of the releases named (0.5.5 to 0.5.23).

What is valid is never listed here. SGLang decides that, and sgguard asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal


class Unset(Enum):
    """Marks the absence of a value where ``None`` is itself a value."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = Unset.UNSET

Kind = Literal["enum", "mode"]


@dataclass(frozen=True)
class Target:
    """One module path at which a release keeps a point.

    Attributes:
        module: dotted module name.
        cls: name of the class in that module.
        method: the method that takes the value.
        releases: the releases that have it there, in words.
        implementation: ``sglang``, or the library whose class SGLang runs instead.
    """

    module: str
    cls: str
    method: str
    releases: str
    implementation: str = "sglang"

    def __str__(self) -> str:
        return f"{self.module}:{self.cls}.{self.method}"


@dataclass(frozen=True)
class Point:
    """A place where SGLang takes an enumerated value.

    Attributes:
        id: stable dotted id; policies and telemetry use it.
        kind: ``enum`` for a pure ``from_string`` classmethod, ``mode`` for a ``set_mode``
            that changes an object.
        summary: what the value selects.
        targets: every module path that a release used.
        retired: no current release has it.
        resets: further methods that change the mode (``mode`` points).
        read_mode: reads the mode now in force from an object, or gives ``UNSET`` where it
            cannot be read (``mode`` points).
        make_probe: makes a throw-away object of the class, so that SGLang can be asked
            whether it accepts a value without touching a live one (``mode`` points).
        pure: ``from_string`` may be called to ask whether a value is accepted.
        expects_refusal: modules that call it with what others sent and expect the refusal.
            To them it is normal control flow: no fallback takes its place, and it is no
            incident.
    """

    id: str
    kind: Kind
    summary: str
    targets: tuple[Target, ...]
    retired: bool = False
    resets: tuple[str, ...] = ()
    read_mode: Callable[[Any], object] | None = None
    make_probe: Callable[[Any], object] | None = None
    pure: bool = True
    expects_refusal: tuple[str, ...] = ()


def _first_layer_mode(cache: Any) -> object:
    # set_mode gives every layer the same mode, so the first one stands for all. A cache
    # with no layers, or one that a later release builds differently, has no mode to read.
    try:
        return cache.caches[0].mode
    except Exception:  # noqa: BLE001 - a subclass may keep its layers in any way
        return UNSET


def _cache_without_layers(cls: Any) -> object:
    # Not by calling the class: its __init__ may be somebody's, and count its calls.
    probe = object.__new__(cls)
    probe.caches = []
    return probe


_DIFFUSION = "sglang.multimodal_gen.runtime"


def _from_string(module: str, cls: str, releases: str) -> Target:
    return Target(module, cls, "from_string", releases)


POINTS: Final[tuple[Point, ...]] = (
    Point(
        "glm_image.kv_cache.mode",
        "mode",
        "what the GLM-Image transformer does with its KV cache in the next forward",
        (
            Target(
                f"{_DIFFUSION}.models.dits.glm_image", "GlmImageKVCache", "set_mode", "0.5.8 on"
            ),
            Target(
                "diffusers.models.transformers.transformer_glm_image",
                "GlmImageKVCache",
                "set_mode",
                "backend=diffusers",
                implementation="diffusers",
            ),
        ),
        resets=("clear",),
        read_mode=_first_layer_mode,
        make_probe=_cache_without_layers,
    ),
    Point(
        "diffusion.backend",
        "enum",
        "which implementation of a diffusion model runs",
        (
            _from_string(f"{_DIFFUSION}.server_args", "Backend", "0.5.8 to 0.5.12"),
            _from_string(f"{_DIFFUSION}.server_args.server_args", "Backend", "0.5.16 on"),
        ),
    ),
    Point(
        "diffusion.role",
        "enum",
        "the part a process plays in a disaggregated diffusion pipeline",
        (_from_string(f"{_DIFFUSION}.disaggregation.roles", "RoleType", "0.5.12 on"),),
        # A worker registers with the role it says it has. The orchestrator refuses one it
        # does not know; a fallback there would put the worker into the wrong pool.
        expects_refusal=(f"{_DIFFUSION}.disaggregation.orchestrator",),
    ),
    Point(
        "srt.speculative_algorithm",
        "enum",
        "the speculative decoding algorithm",
        (_from_string("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm", "0.5.5 on"),),
    ),
    Point(
        "srt.cp_strategy",
        "enum",
        "how context parallelism splits a sequence",
        (_from_string("sglang.srt.layers.cp.base", "ContextParallelStrategyKind", "0.5.16 on"),),
    ),
    Point(
        "srt.cp_attention_backend",
        "enum",
        "the attention calling convention under context parallelism",
        (_from_string("sglang.srt.layers.cp.base", "CPAttentionBackendKind", "0.5.16 on"),),
    ),
    Point(
        "diffusion.execution_mode",
        "enum",
        "inference, preprocessing or training",
        (_from_string(f"{_DIFFUSION}.server_args", "ExecutionMode", "0.5.5, 0.5.8, 0.5.9"),),
        retired=True,
    ),
    Point(
        "diffusion.workload_type",
        "enum",
        "text or image to image or video",
        (_from_string(f"{_DIFFUSION}.server_args", "WorkloadType", "0.5.5, 0.5.8, 0.5.9"),),
        retired=True,
    ),
    Point(
        "diffusion.pipeline_type",
        "enum",
        "basic or preprocessing pipeline",
        (_from_string(f"{_DIFFUSION}.pipelines.pipeline_registry", "PipelineType", "0.5.5"),),
        retired=True,
    ),
    Point(
        "diffusion.dataset_type",
        "enum",
        "where a preprocessing data set comes from",
        (_from_string("sglang.multimodal_gen.configs.configs", "DatasetType", "0.5.5"),),
        retired=True,
    ),
    Point(
        "diffusion.video_loader_type",
        "enum",
        "the library that decodes video",
        (_from_string("sglang.multimodal_gen.configs.configs", "VideoLoaderType", "0.5.5"),),
        retired=True,
    ),
)

BY_ID: Final[dict[str, Point]] = {point.id: point for point in POINTS}


def targets_by_module() -> dict[str, list[tuple[Point, Target]]]:
    """The rows of the table, grouped by the module to watch."""
    found: dict[str, list[tuple[Point, Target]]] = {}
    for point in POINTS:
        for target in point.targets:
            found.setdefault(target.module, []).append((point, target))
    return found


def looks_discovered(point_id: str) -> bool:
    """Whether an id has the form that discovery derives.

    Discovered ids end in a class name, or a class name and ``.mode``; ids of the table are
    all lower case. So a policy can name a discovered point before SGLang is imported, and a
    misspelt id of the table is still an error.
    """
    return any(part.lstrip("_")[:1].isupper() for part in point_id.split("."))
