"""What programs of the first version of this package's name call: a loader of tasks for trying an agent out, and a
command line made of constructors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlightning.agent.resources import NamedResources
from agentlightning.agent.tasks import Tasks, check_tasks

__all__ = ["DevTaskLoader"]


class DevTaskLoader:
    """Tasks and resources for ``Trainer(dev=True).fit(agent, dev_data=...)``."""

    def __init__(self, tasks: Tasks, resources: Any = None) -> None:
        self.tasks = check_tasks(tasks, "DevTaskLoader(tasks)")
        given = getattr(resources, "resources", resources)
        self.resources: Mapping[str, Any] = NamedResources(given or {})
        NamedResources(self.resources).to_json()  # refuses what is no resource
