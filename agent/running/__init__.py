"""The engines of this node: started, watched, adopted, stopped."""

from agent.running.instances import EngineInstances, EngineTarget

__all__ = ["EngineInstances", "EngineTarget"]
