"""``import sgguard.auto``: guard SGLang in this process, as the environment says.

``SGGUARD_POLICY`` names a policy file; without it values are observed only. Whatever goes
wrong is logged, and nothing is raised. It does not matter whether SGLang is imported before
or after.
"""

from __future__ import annotations

import logging

try:
    from sgguard.runtime import runtime

    runtime.install_from_environment()
except Exception:
    logging.getLogger("sgguard").exception("sgguard: could not be installed; SGLang is unguarded")
