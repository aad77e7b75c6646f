"""Run: what owns everything that a run needs, opens it in order and closes it once."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("fcntl") is None:
    from agentlightning.errors import ConfigError
    from agentlightning.spellings.absent import why

    raise ConfigError(f"nothing can be trained on {sys.platform}: {why('windows')}")
