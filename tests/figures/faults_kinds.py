"""The faults that were found in Mirbad, the kind of each, and the tests that try inputs of that kind."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """A kind of input that once did harm. `tests` are files, or tests by their names."""

    fault: str
    kind: str
    tests: tuple[str, ...]

    def has(self, test: str) -> bool:
        """Return whether a test, by its id of pytest, tries inputs of this kind."""
        plain = test.partition("[")[0]
        return any(plain == one or (plain.startswith(f"{one}::") and "::" not in one) for one in self.tests)


def _kind(fault: str, kind: str, folder: str, *tests: str) -> Kind:
    return Kind(fault, kind, tuple(str(Path("tests", folder, test)) for test in tests))


_SETTINGS = "test_engine_settings.py::test_"
_ADMISSION = (*("test_admission.py", "test_memory_needs.py", "test_start_slots.py"),)

KINDS = (
    # Engines
    _kind(
        "an operator runs commands as the agent", "variables of an engine", "agent/common",
        f"{_SETTINGS}a_variable_that_is_not_listed_is_refused",
        f"{_SETTINGS}a_listed_variable_takes_no_path_for_its_value",
    ),
    _kind(
        "an operator runs commands as the agent", "arguments of an engine, in each spelling", "agent/common",
        f"{_SETTINGS}an_option_that_is_not_listed_is_refused_in_each_spelling",
        f"{_SETTINGS}a_listed_option_takes_no_path_no_dotted_name_and_no_option_for_its_value",
        f"{_SETTINGS}a_parser_that_takes_prefixes_never_sets_an_option_that_is_not_listed",
        f"{_SETTINGS}a_refusal_has_a_code_a_field_and_a_sentence",
        f"{_SETTINGS}the_owner_cannot_allow_what_the_agent_sets",
    ),
    _kind(
        "an operator runs commands as the agent", "settings that people use still pass", "agent/common",
        f"{_SETTINGS}settings_that_people_use_pass", f"{_SETTINGS}the_agent_and_the_master_allow_what_is_listed",
    ),
    _kind(
        "an engine reads keys, fence or sockets", "processes and containers, from inside one", "agent/engines",
        "test_confinement.py", "test_confinement_means.py", "test_container_confinement.py",
    ),
    _kind(
        "an engine that dies stays dead", "ends of an engine", "jobs", "test_restarts.py", "test_restarts_real.py",
    ),
    _kind(
        "an engine that dies leaves no trace", "ends, their causes and metrics", "models_app", "test_exits.py",
    ),
    _kind("a restart of Docker counts as deaths", "ends with and without Docker", "agent/engines", "test_endings.py"),
    _kind(
        "one request ends every replica", "how an engine ends amid a request", "gateway",
        "test_failures.py::test_a_request_that_an_engine_did_not_survive_is_sent_to_no_other_replica",
        "test_failures.py::test_the_agent_knows_whose_requests_an_engine_broke_off",
        "test_failures.py::test_a_request_that_ended_well_is_no_suspect",
    ),
    _kind("no memory check without a budget", "needs of a start on a node", "agent/engines", *_ADMISSION),
    _kind("no memory check without a budget", "questions of pages and API", "pages", "test_start_asks.py"),
    # Bodies and log-ins
    _kind(
        "one body stops the web process", "shapes of a JSON body", "gateway",
        "test_members.py", "test_body.py",
    ),
    _kind("one body stops the web process", "forms", "gateway", "test_form.py"),
    _kind("slow bodies take all places", "paces, sizes and shares", "gateway", "test_arrival.py"),
    _kind(
        "log-ins take memory and pass their limit", "posts of strangers and people", "accounts",
        "test_login_attempts.py", "test_login_door.py",
    ),
    _kind("passwords of one character", "weak passwords, wherever one is set", "accounts", "test_passwords.py"),
    # Trust
    _kind("one bad node stops the master", "claims and refusals of a node", "nodes", "test_lying_nodes.py"),
    _kind("one bad node stops a takeover", "lies of nodes in a takeover", "trust", "test_lying_nodes.py"),
    _kind(
        "a changed audit log is repaired unsaid", "attacks on lines, files and keys", "audit",
        "test_attacks.py", "test_checkpoints.py", "test_seal.py", "test_chain.py",
    ),
    _kind("a changed audit log is repaired unsaid", "heads that a node sees", "agent/core", "test_witness.py"),
    # /v1
    _kind(
        "a post with an offer loses its body", "offers, half-closed clients, heads and framing", "gateway",
        "test_doors.py", "test_sockets.py",
    ),
    _kind("browsers of another origin get no answer", "origins and preflights", "gateway", "test_cors.py"),
    _kind("errors in the form of another API", "errors by API, whole and streamed", "gateway", "test_error_forms.py"),
    _kind(
        "token limits are switched off", "usage in streams and whole responses", "gateway",
        "test_usage.py", "test_usage_of_whole_responses.py", "test_limits.py",
    ),
    _kind(
        "a key reaches a model by another's name", "names of models", "gateway",
        "test_core.py::test_a_key_for_a_model_reaches_no_other_that_is_served_as_its_id",
        "test_core.py::test_only_listed_endpoints_are_served",
    ),
    _kind("the log of an engine grows for ever", "lines, rotations and runs", "agent/engines", "test_logs.py"),
    _kind("a health body is read as a word", "health bodies", "agent/engines", "test_health.py"),
    _kind("a line without end stops the watcher", "event streams of a node", "nodes", "test_link_events.py"),
    # Models, files, addresses
    _kind("GGUF files by the wrong pattern", "names of files", "agent/engines", "test_gguf_files.py"),
    _kind(
        "the master's address is the wrong one", "schemes, hosts, ports, proxies", "api", "test_origins.py",
    ),
    _kind(
        "the join command has the wrong address", "addresses of the browser", "nodes",
        "test_tokens.py::test_the_urls_of_a_join_are_those_of_the_browser_if_listed",
        "test_tokens.py::test_the_command_of_a_page_behind_tls_downloads_over_tls_from_the_same_port",
        "test_tokens.py::test_a_browser_on_the_master_itself_leaves_the_configured_name_to_other_machines",
    ),
    _kind("numbers of log lines are dropped", "numbers, levels and formats", "agent/core", "test_logs.py"),
    _kind("files of the data folder are readable", "writers of files", "up", "test_folder.py"),
    _kind("unknown websockets are faults", "addresses", "api", "test_websockets.py"),
    _kind(
        "a foreign Accept is a fault", "routes, methods and media types", "api", "test_problems.py",
    ),
    # Machines
    _kind("one closed path takes the node away", "errors of the file system", "agent/engines", "test_unreadable.py"),
    _kind("a slow driver counts as none", "answers of a driver", "agent/engines", "test_gpu_slow.py"),
    _kind("an engine gets cores that it may not use", "groups, quotas, affinity", "agent/engines", "test_limits.py"),
    _kind(
        "a clock that goes back leaves work standing", "distances of clocks", "",
        "jobs/test_ledger.py::test_an_operation_goes_on_when_the_clock_was_set_back",
        "jobs/test_ledger.py::test_a_difference_of_clocks_within_minutes_takes_no_step_from_its_worker",
        "nodes/test_reachability.py::test_a_clock_that_was_set_back_does_not_keep_a_silent_node_online",
        "accounts/test_login_attempts.py::test_a_clock_that_was_set_back_locks_nobody_out_for_longer",
    ),
)  # fmt: skip
