"""What a handler finds in the application. Types only: importing this module loads no engine code."""

from typing import TYPE_CHECKING

from aiohttp import web

from agent.config import AgentConfig

if TYPE_CHECKING:
    from agent.fence import Fence
    from agent.identity import Identity
    from agent.operations import Journal
    from agent.running import Instances

CONFIG: web.AppKey[AgentConfig] = web.AppKey("config", AgentConfig)
INSTANCES: "web.AppKey[Instances]" = web.AppKey("instances")
FENCE: "web.AppKey[Fence]" = web.AppKey("fence")
JOURNAL: "web.AppKey[Journal]" = web.AppKey("journal")
IDENTITY: "web.AppKey[Identity]" = web.AppKey("identity")
