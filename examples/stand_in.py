"""A stand-in for three of SGLang's classes, for `sgguard demo` where SGLang is not installed.

It only has their outward form: what they are called with, what they accept, and that they
raise. It proves nothing about SGLang; the tests use the real one.
"""

from enum import Enum


class Layer:
    mode = None


class GlmImageKVCache:
    """Keeps one mode for all layers."""

    MODES = ("write", "read", "skip")

    def __init__(self, num_layers):
        self.caches = [Layer() for _ in range(num_layers)]

    def set_mode(self, mode):
        if mode is not None and mode not in self.MODES:
            raise ValueError(f"stand-in: no such mode {mode}")
        for layer in self.caches:
            layer.mode = mode

    def clear(self):
        for layer in self.caches:
            layer.mode = None


class Backend(str, Enum):
    AUTO = "auto"
    SGLANG = "sglang"
    DIFFUSERS = "diffusers"

    @classmethod
    def from_string(cls, value):
        return cls(value.lower())


ROLE_ALIASES = {"denoising": "denoiser"}


class RoleType(str, Enum):
    ENCODER = "encoder"
    DENOISER = "denoiser"
    DECODER = "decoder"
    SERVER = "server"

    @classmethod
    def from_string(cls, value):
        name = value.lower()
        return cls(ROLE_ALIASES.get(name, name))
