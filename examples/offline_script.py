"""sgguard in a script that uses SGLang directly.

Run it:  python examples/offline_script.py
With a policy:  SGGUARD_POLICY=examples/policy.yaml python examples/offline_script.py
"""

import sgguard
import sgguard.auto  # before or after SGLang, as you like

# isort: split
from sglang.multimodal_gen.runtime.models.dits.glm_image import GlmImageKVCache
from sglang.multimodal_gen.runtime.server_args import Backend, ServerArgs


def attempt(what, call):
    try:
        print(f"{what}: {call()!r}")
    except ValueError as error:
        print(f"{what}: {error}")
        for note in getattr(error, "__notes__", ()):  # the notes end up in tracebacks, too
            print("   ", note.replace("\n", "\n    "))


cache = GlmImageKVCache(num_layers=2)
cache.set_mode("write")
cache.set_mode("read")
attempt("set_mode('READ')", lambda: cache.set_mode("READ"))
attempt("set_mode('prefill')", lambda: cache.set_mode("prefill"))
print("mode now:", cache[0].mode)
attempt("Backend.from_string('HF')", lambda: Backend.from_string("HF"))
# The backend is looked at first: it is refused before SGLang looks for a model.
attempt(
    "ServerArgs.from_kwargs(backend='trt')",
    lambda: ServerArgs.from_kwargs(model_path="no/such-model", backend="trt"),
)

print()
print(sgguard.status())
