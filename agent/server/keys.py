"""Keys of the application's state. Types only: importing this module loads no engine code."""

from typing import TYPE_CHECKING

from aiohttp import web

from agent.config import AgentConfig

if TYPE_CHECKING:
    from collections import Counter

    from agent.fence import Fence
    from agent.operations import OperationJournal
    from agent.running import EngineInstances
    from agent.server.events import EventBroadcaster
    from agent.server.rotation import Rotation
    from agent.server.status import Reporter
    from agent.server.tls import TlsTerminator
    from agent.witness import Witness

CONFIG: web.AppKey[AgentConfig] = web.AppKey("config", AgentConfig)
INSTANCES: "web.AppKey[EngineInstances]" = web.AppKey("instances")
OPEN_REQUESTS: "web.AppKey[Counter[str]]" = web.AppKey("open_requests")
"""Counts of relayed requests in progress, by instance."""
FENCE: "web.AppKey[Fence]" = web.AppKey("fence")
JOURNAL: "web.AppKey[OperationJournal]" = web.AppKey("journal")
TLS: "web.AppKey[TlsTerminator]" = web.AppKey("tls")
"""The identity in use is ``app[TLS].identity``; it changes with a rekey."""
EVENTS: "web.AppKey[EventBroadcaster]" = web.AppKey("events")
REPORTER: "web.AppKey[Reporter]" = web.AppKey("reporter")
WITNESS: "web.AppKey[Witness]" = web.AppKey("witness")
ROTATION: "web.AppKey[Rotation]" = web.AppKey("rotation")
