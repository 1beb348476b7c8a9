"""The engines of this node: started, watched, adopted, stopped."""

from agent.running.instances import EngineTarget, Instances

__all__ = ["EngineTarget", "Instances"]
