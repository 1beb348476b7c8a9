"""What a handler finds in the application. Types only: importing this module loads no engine code."""

from typing import TYPE_CHECKING

from aiohttp import web

from agent.config import AgentConfig

if TYPE_CHECKING:
    from collections import Counter

    from agent.fence import Fence
    from agent.operations import Journal
    from agent.running import Instances
    from agent.server.events import Hub
    from agent.server.rotation import Rotation
    from agent.server.status import Reporter
    from agent.server.tls import Door

CONFIG: web.AppKey[AgentConfig] = web.AppKey("config", AgentConfig)
INSTANCES: "web.AppKey[Instances]" = web.AppKey("instances")
OPEN_REQUESTS: "web.AppKey[Counter[str]]" = web.AppKey("open_requests")
"""How many requests the relay has at work, by instance."""
FENCE: "web.AppKey[Fence]" = web.AppKey("fence")
JOURNAL: "web.AppKey[Journal]" = web.AppKey("journal")
DOOR: "web.AppKey[Door]" = web.AppKey("door")
"""The identity in use is ``app[DOOR].identity``; it changes with a rekey."""
HUB: "web.AppKey[Hub]" = web.AppKey("hub")
REPORTER: "web.AppKey[Reporter]" = web.AppKey("reporter")
ROTATION: "web.AppKey[Rotation]" = web.AppKey("rotation")
