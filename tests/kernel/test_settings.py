"""Every setting that can be wrong is refused with its name, before anything starts; no secret is repeated."""

import os
from datetime import timedelta

import pytest

from mirbad.kernel.conf import BadSettings, read_settings

pytestmark = pytest.mark.unit

LONG = "a-secret-key-that-is-long-enough-to-be-taken"
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MIRBAD_BIND", "nonsense..x"),
        ("MIRBAD_BIND", ""),
        ("MIRBAD_BIND", "http://10.0.0.1"),
        ("MIRBAD_HOSTS", "http://master.lan"),
        ("MIRBAD_HOSTS", "master.lan:8080"),
        ("MIRBAD_HOSTS", "master.lan other.lan"),
        ("MIRBAD_TRUSTED_PROXIES", "my-proxy"),
        ("MIRBAD_TRUSTED_PROXIES", "0.0.0.0/0"),
        ("MIRBAD_TRUSTED_PROXIES", "127.0.0.1, ::/0"),
        ("MIRBAD_SECRET_KEY", "hunter2-short"),
        ("DATABASE_URL", "hunter2"),
        ("DATABASE_URL", "mysql://mirbad:hunter2@db/mirbad"),
        ("DATABASE_URL", "postgres://mirbad:hunter2@db"),
        ("DATABASE_URL", "postgres://mirbad:hunter2/3@db/mirbad"),
        ("MIRBAD_REDIS_URL", "hunter2"),
        ("MIRBAD_REDIS_URL", "http://:hunter2@redis"),
        ("MIRBAD_REDIS_URL", "redis://:hunter2@"),
        ("MIRBAD_REDIS_URL", "unix://"),
        ("MIRBAD_ENROLL_URL", "http://master.lan:8443"),
        ("MIRBAD_ENROLL_URL", "https://"),
        ("MIRBAD_AGENT_BUNDLE_URL", "master.lan"),
        ("MIRBAD_ENGINE_IMAGE", "vllm/vllm-openai:latest"),
        ("MIRBAD_ENGINE_IMAGE", "vllm/vllm-openai@sha256:123"),
        ("MIRBAD_DEFAULT_JOIN_TOKEN_LIFETIME", "10d"),
        ("MIRBAD_DEFAULT_JOIN_TOKEN_LIFETIME", "1m"),
        ("MIRBAD_OPERATION_LEASE", "0s"),
        ("MIRBAD_LAUNCH_TIMEOUT", "99999999999999d"),
        ("MIRBAD_STOP_TIMEOUT", "0.1s"),
        ("MIRBAD_DATA", ""),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name, text):
    with pytest.raises(BadSettings) as refusal:
        read_settings({name: text})
    assert str(refusal.value).startswith(name)
    assert "hunter2" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("MIRBAD_BIND", "0.0.0.0", "bind", "0.0.0.0"),
        ("MIRBAD_BIND", "::", "bind", "::"),
        ("MIRBAD_BIND", "localhost", "bind", "localhost"),
        (
            "MIRBAD_HOSTS",
            "master, 192.0.2.10,.lan.example , [::1], *",
            "hosts",
            ("master", "192.0.2.10", ".lan.example", "[::1]", "*"),
        ),
        ("MIRBAD_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8, ::1", "trusted_proxies", ("127.0.0.1", "10.0.0.0/8", "::1")),
        ("MIRBAD_SECRET_KEY", LONG, "secret_key", LONG),
        ("DATABASE_URL", "", "database_url", ""),
        ("DATABASE_URL", "postgres://u:p%2F3@db:5432/mirbad", "database_url", "postgres://u:p%2F3@db:5432/mirbad"),
        (
            "DATABASE_URL",
            "postgresql:///mirbad?host=/run/postgresql",
            "database_url",
            "postgresql:///mirbad?host=/run/postgresql",
        ),
        ("MIRBAD_REDIS_URL", "rediss://:p@redis:6380/1", "redis_url", "rediss://:p@redis:6380/1"),
        ("MIRBAD_REDIS_URL", "unix:///run/redis.sock", "redis_url", "unix:///run/redis.sock"),
        ("MIRBAD_ENROLL_URL", "https://[2001:db8::1]:8443", "enroll_url", "https://[2001:db8::1]:8443"),
        ("MIRBAD_AGENT_BUNDLE_URL", "https://mirbad.example", "agent_bundle_url", "https://mirbad.example"),
        (
            "MIRBAD_ENGINE_IMAGE",
            f"registry.lan:5000/vllm:1@{DIGEST}",
            "engine_image",
            f"registry.lan:5000/vllm:1@{DIGEST}",
        ),
        ("MIRBAD_DEFAULT_JOIN_TOKEN_LIFETIME", "24h", "default_join_token_lifetime", timedelta(hours=24)),
    ],
)
def test_a_good_value_is_taken(name, text, field, value):
    assert getattr(read_settings({name: text}), field) == value


def test_names_of_tests_and_figures_are_no_settings_and_stop_nothing():
    for name in ("MIRBAD_FIGURE_SOAK_SECONDS", "MIRBAD_TEST_FENCING_RUNS"):
        assert read_settings({name: "60"}).port == 8080
    for name in ("MIRBAD_FIGURES", "MIRBAD_FIGUR_SOAK"):
        with pytest.raises(BadSettings, match=f"{name} is not a setting"):
            read_settings({name: "60"})


def test_a_secret_and_its_file_together_are_refused(tmp_path):
    (tmp_path / "password").write_text("from the file\n")
    path = str(tmp_path / "password")
    assert read_settings({"MIRBAD_ADMIN_PASSWORD_FILE": path}).admin_password == "from the file"
    with pytest.raises(BadSettings, match="MIRBAD_ADMIN_PASSWORD_FILE and MIRBAD_ADMIN_PASSWORD are both set"):
        read_settings({"MIRBAD_ADMIN_PASSWORD_FILE": path, "MIRBAD_ADMIN_PASSWORD": "another"})


def test_a_secret_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "key").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadSettings, match="MIRBAD_SECRET_KEY_FILE: the file is not text"):
        read_settings({"MIRBAD_SECRET_KEY_FILE": str(tmp_path / "key")})


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_stored_key_of_another_user_is_named(tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "secret-key").write_text(LONG)
    (tmp_path / "secrets" / "secret-key").chmod(0)
    with pytest.raises(BadSettings, match="secret-key"):
        read_settings({"MIRBAD_DATA": str(tmp_path)})
