"""The commands to paste on another machine."""

import shlex

from mirbad.bundles.archive import Bundle


def install_command(bundle: Bundle, base_url: str, join_arguments: list[str]) -> str:
    """Return a command that downloads `bundle` from `base_url`, checks it, installs the agent and joins. It prompts for
    the token.

    It runs in a folder of its own that is removed, and stops at the first step that fails. The hash comes from the
    master's signed-in pages, so the download itself may be plain HTTP.
    """
    url = shlex.quote(f"{base_url.rstrip('/')}{bundle.path}")
    check = f'echo "{bundle.sha256}  agent.tar.gz" | sha256sum -c -'
    install = shlex.join([f"./{bundle.folder}/install.sh", *join_arguments])
    return (
        '(set -e; d="$(mktemp -d)"; trap \'rm -rf "$d"\' EXIT; cd "$d"; '
        f"curl -fsSL -o agent.tar.gz {url}; {check}; tar -xzf agent.tar.gz; "
        f"sudo --preserve-env=MIRBAD_JOIN_TOKEN {install})"
    )
