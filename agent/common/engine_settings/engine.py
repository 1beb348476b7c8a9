"""The settings of one engine that a model may have."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.common.engine_settings.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Arguments and variables of one engine, by their full names; others are refused.

    `managed` and `managed_variables` are set by the agent. `joins_values` means that ``--name=value`` is read,
    `has_members` that ``--name.member`` is, `negates` that a switch also has ``--no-name``. `attached` are short
    options that are read with their value behind them (``-O3``). `open_variables` are a rule of names and one of
    values.
    """

    name: str
    managed: frozenset[str]
    managed_variables: frozenset[str]
    arguments: Mapping[str, Rule]
    variables: Mapping[str, Rule]
    joins_values: bool = False
    has_members: bool = False
    negates: bool = False
    attached: Mapping[str, Rule] | None = None
    open_variables: tuple[Rule, Rule] | None = None
