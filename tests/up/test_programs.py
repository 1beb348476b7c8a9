"""The generated supervisord configuration: read by supervisord itself, free of secrets, in any folder."""

import pytest
from supervisor.options import ServerOptions

from mirbad.kernel.conf import Settings
from mirbad.up import programs
from mirbad.up.programs import Layout

pytestmark = pytest.mark.unit


def layout(tmp_path, **settings):
    data = tmp_path / "a folder with a 100% odd 'name'#;here"
    for part in ("run", "logs", "agent"):
        (data / part).mkdir(parents=True)
    return Layout(Settings(data=data, **settings), tmp_path)


def parsed(given, of=None):
    given.configuration.write_text(programs.configuration(given, of or programs.programs(given)))
    options = ServerOptions()
    options.realize(["-c", str(given.configuration)])
    return {
        process.name: process for group in options.process_group_configs for process in group.process_configs
    }, options


def test_every_process_of_the_master_is_run(tmp_path):
    processes, _ = parsed(layout(tmp_path))
    assert set(processes) == {"broker", "web", "enroll", "watcher", "worker", "beat", "agent"}


def test_a_broker_elsewhere_is_not_run_here(tmp_path):
    processes, _ = parsed(layout(tmp_path, redis_url="redis://broker.example:6379/0"))
    assert "broker" not in processes


def test_every_process_dies_with_the_supervisor_and_is_started_again(tmp_path):
    processes, _ = parsed(layout(tmp_path))
    assert len(processes) == 7
    for process in processes.values():
        assert "parent_death.py" in process.command
        assert process.autorestart is not False
        assert process.killasgroup is False, "engines must not be killed with the agent"


def test_no_secret_stands_in_the_configuration_or_on_a_command_line(tmp_path):
    secrets = {
        "admin_password": "pass-canary",
        "secret_key": "key-canary-of-at-least-32-characters",
        "redis_url": "redis://:url-canary@b:1/0",
    }
    given = layout(tmp_path, database_url="postgres://u:db-canary@h/d", **secrets)
    parsed(given)
    assert "canary" not in given.configuration.read_text()


def test_agent_and_broker_are_started_without_the_masters_settings(tmp_path):
    processes, _ = parsed(layout(tmp_path))
    scrubbed = {name for name, process in processes.items() if "--scrub" in process.command}
    assert scrubbed == {"agent", "broker"}


def test_the_agent_waits_until_this_machine_has_joined(tmp_path):
    given = layout(tmp_path)
    assert parsed(given)[0]["agent"].autostart is False
    (given.agent_state / "identity").mkdir(parents=True)
    (given.agent_state / "identity" / "current").symlink_to("..")
    assert parsed(given)[0]["agent"].autostart is True


def test_supervisord_answers_on_a_private_unix_socket_alone(tmp_path):
    given = layout(tmp_path)
    _, options = parsed(given)
    (server,) = options.server_configs
    assert (server["file"], server["chmod"]) == (str(given.control_socket), 0o600)


def test_forwarding_headers_are_believed_from_listed_proxies_alone(tmp_path):
    command = programs.web(layout(tmp_path))
    assert "--no-proxy-headers" in command
    other = tmp_path / "other"
    other.mkdir()
    command = programs.web(layout(other, trusted_proxies=("10.0.0.1", "10.0.0.2")))
    assert command[command.index("--forwarded-allow-ips") + 1] == "10.0.0.1,10.0.0.2"


def test_in_recovery_mode_there_is_web_alone_and_its_end_is_meant(tmp_path):
    given = layout(tmp_path)
    processes, _ = parsed(given, programs.in_recovery(given))
    assert set(processes) == {"web"}
    assert processes["web"].exitcodes == [75]
    assert processes["web"].autorestart is not True, "on another end alone"
