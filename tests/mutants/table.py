"""The modules that are mutated, and for each the tests that have to notice."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A module with its tests; `values` for a module of tables, which are mutated outside of functions, too."""

    module: str
    tests: tuple[str, ...]
    values: bool = False

    @property
    def name(self) -> str:
        return self.module.removesuffix(".py").replace("/", ".")


_PLACING = ("tests/models_app/fit/test_placing.py", "tests/models_app/fit/test_planner.py")
_STATES = ("tests/architecture/test_states.py",)
_HTTP1 = ("tests/gateway/test_server.py", "tests/gateway/test_work.py", "tests/agent/core/test_body.py")
_FORMATS = ("tests/models_app/fit/test_noise.py", "tests/models_app/fit/test_shape.py")
_HEADERS = (*_FORMATS, "tests/agent/downloads/test_headers.py")
_TAKEOVERS = (
    "tests/trust/test_takeover.py",
    "tests/trust/test_configured_takeover.py",
    "tests/trust/test_continuations.py",
    "tests/trust/test_fenced_master.py",
    "tests/trust/test_lying_nodes.py",
)

TARGETS = (
    Target(
        "jobs/ledger.py",
        (
            "tests/jobs/test_ledger_rows.py",
            "tests/jobs/test_ledger.py",
            "tests/jobs/sweep/test_sweep.py",
            "tests/jobs/test_revoke.py",
            "tests/jobs/moves/test_force_and_unplace.py",
            *_TAKEOVERS,
        ),
    ),
    Target("jobs/states.py", _STATES, values=True),
    Target("models_app/states.py", _STATES, values=True),
    Target("nodes/states.py", _STATES, values=True),
    Target(
        "models_app/placement/apply.py",
        ("tests/models_app/test_registry.py", "tests/models_app/test_multi_node.py", "tests/jobs/test_launch.py"),
    ),
    Target("models_app/placement/auto_place.py", _PLACING),
    Target("models_app/placement/candidates.py", _PLACING),
    Target("models_app/placement/feasible.py", ("tests/models_app/test_feasible.py", *_PLACING)),
    Target("models_app/placement/fit_preview.py", (*_PLACING, "tests/pages/test_editor_placement.py")),
    Target("models_app/placement/fleet.py", _PLACING),
    Target(
        "models_app/placement/multi_node.py", ("tests/models_app/test_multi_node.py", "tests/jobs/test_replicas.py")
    ),
    Target("models_app/placement/planner.py", ("tests/models_app/fit/test_planner.py",)),
    Target(
        "models_app/placement/gpu_conditions.py",
        ("tests/models_app/test_registry.py", "tests/models_app/test_feasible.py", "tests/models_app/test_running.py"),
    ),
    Target("models_app/placement/relocate.py", ("tests/jobs/moves/test_moves.py", "tests/jobs/moves/test_failures.py")),
    Target(
        "models_app/placement/snapshot.py",
        (*_PLACING, "tests/models_app/test_snapshot.py", "tests/models_app/test_feasible.py"),
    ),
    Target("models_app/placement/workload.py", _PLACING),
    Target("models_app/gateway/balance.py", ("tests/gateway/test_balance.py", "tests/gateway/test_dashboard.py")),
    Target(
        "models_app/gateway/core.py",
        ("tests/gateway/test_core.py", "tests/gateway/test_core_paths.py", "tests/gateway/test_access.py"),
    ),
    Target("models_app/gateway/limits.py", ("tests/gateway/test_limits.py",)),
    Target(
        "models_app/gateway/usage.py", ("tests/gateway/test_usage.py", "tests/gateway/test_usage_of_whole_responses.py")
    ),
    Target("nodes/enrollment/body.py", ("tests/nodes/test_body.py",)),
    Target(
        "nodes/enrollment/join.py",
        (
            "tests/nodes/test_join.py",
            "tests/nodes/test_bad_machines.py",
            "tests/nodes/test_registry.py",
            "tests/nodes/test_secrets_stay_secret.py",
        ),
    ),
    Target("nodes/enrollment/join_command.py", ("tests/nodes/test_tokens.py",)),
    Target("nodes/enrollment/limits.py", ("tests/nodes/test_limits.py",)),
    Target("nodes/enrollment/listener.py", ("tests/nodes/test_listener.py",)),
    Target("nodes/enrollment/tokens.py", ("tests/nodes/test_tokens.py", "tests/nodes/test_join.py")),
    Target("nodes/fencing.py", ("tests/nodes/test_fencing_rows.py", *_TAKEOVERS)),
    Target(
        "agent/common/budget.py",
        (
            "tests/agent/common/test_budget.py",
            "tests/models_app/fit/test_verdict.py",
            "tests/agent/engines/test_admission.py",
            "tests/agent/engines/test_memory_needs.py",
            "tests/agent/engines/test_start_slots.py",
        ),
    ),
    Target("agent/common/formats/gguf.py", ("tests/agent/common/test_gguf.py", *_FORMATS)),
    Target("agent/common/formats/pickles.py", ("tests/agent/common/test_pickles.py",)),
    Target("agent/common/formats/safetensors.py", ("tests/agent/common/test_safetensors.py", *_HEADERS)),
    Target(
        "agent/common/http1/client.py",
        ("tests/gateway/test_upstream.py", "tests/gateway/test_upstream_framing.py", "tests/gateway/test_pool.py"),
    ),
    Target("agent/common/http1/inline_task.py", ("tests/gateway/test_work.py",)),
    Target("agent/common/http1/request.py", _HTTP1),
    Target("agent/common/http1/server.py", _HTTP1),
    Target(
        "agent/common/image_rules.py",
        (
            "tests/agent/common/test_image_rules.py",
            "tests/agent/engines/test_specs.py",
            "tests/models_app/test_inputs.py",
        ),
    ),
    Target(
        "agent/common/redaction.py", ("tests/agent/common/test_redaction.py", "tests/agent/common/test_pem_lines.py")
    ),
    Target(
        "agent/common/strict_json.py",
        ("tests/agent/common/test_strict_json.py", "tests/api/test_parsers.py", "tests/nodes/test_body.py"),
    ),
    Target("agent/common/tls_pins.py", ("tests/agent/common/test_tls_pins.py", "tests/nodes/test_pins.py")),
)
