"""The policy file's JSON Schema, for editors. Made from the model, so it cannot drift.

What no schema can say is left to ``sgguard check``: chains of aliases, globs that match no
point, and everything only SGLang knows. A schema cannot tell ``1.0`` from ``1`` either.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

SHIPPED: Final = "policy.schema.json"


def policy_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a policy file."""
    from sgguard.policy import Policy

    schema = Policy.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "sgguard policy"
    # The one rule of the model that binds two keys.
    schema["$defs"]["PointPolicy"]["if"] = {
        "properties": {"action": {"const": "fallback"}},
        "required": ["action"],
    }
    schema["$defs"]["PointPolicy"]["then"] = {"required": ["fallback"]}
    return schema


def render() -> str:
    """The schema as text, as it is shipped."""
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"


def shipped() -> str:
    """The text of the schema file in this package."""
    return resources.files("sgguard").joinpath(SHIPPED).read_text(encoding="utf-8")
