#!/bin/sh
# Installs the Mirbad agent from this folder and, with join parameters, joins a master and starts it.
#
#   sudo ./install.sh [--node-id ID --enroll-url URL --ca-hash HASH [--address A] [--rekey --node-uid UID]]
#                     [--fabric NAME[:ADAPTER,…]] [--llama-server PATH] [--vllm-command COMMAND] [--nvidia-smi PATH]
#
# The paths of this machine's engines and of nvidia-smi are written to agent.json. Without an engine path the agent uses
# the engines that it finds (llama.cpp's wheel, containers); the join lists them.
#
# The join token is read from MIRBAD_JOIN_TOKEN or a prompt, never from the command line. To upgrade, run install.sh of a
# newer archive: configuration, identity and running engines stay.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
base=/usr/local/lib/mirbad-agent
config=/etc/mirbad-agent/agent.json
state=/var/lib/mirbad-agent
models=/srv/mirbad/models
user=mirbad-agent

fail() { echo "install.sh: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "must run as root (sudo ./install.sh …)"

python=""
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "requires Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3 python3-venv)"

wheel=$(ls "$here"/mirbad_agent-*-py3-none-any.whl 2>/dev/null) || fail "no wheel next to install.sh; unpack the whole archive"
version=$(basename "$wheel" | cut -d- -f2)

# always a new folder: the one in use is never changed, and stays in use when the join fails
name=$version
[ ! -e "$base/$name" ] || name="$version-$(date -u +%Y%m%d%H%M%S)"
echo "Installing mirbad-agent $version to $base/$name with $("$python" --version)"
before=$(readlink "$base/current" 2>/dev/null || true)
finished=no
undo() {
    [ $finished = no ] || return 0
    if [ "$(readlink "$base/current" 2>/dev/null)" = "$name" ]; then
        if [ -n "$before" ]; then ln -sfn "$before" "$base/current"; else rm -f "$base/current" /usr/local/bin/mirbad-agent; fi
    fi
    rm -rf "${base:?}/$name"
    rmdir "$base" 2>/dev/null || true
}
trap undo EXIT
mkdir -p "$base"
"$python" -m venv "$base/$name"
pip="$base/$name/bin/python -m pip install -q --disable-pip-version-check --no-input"
$pip --require-hashes -r "$here/requirements-agent.txt"
$pip --no-deps --no-index "$wheel"
ln -sfn "$name" "$base/current"
ln -sf "$base/current/bin/mirbad-agent" /usr/local/bin/mirbad-agent

if ! id "$user" >/dev/null 2>&1; then
    useradd --system --home-dir "$state" --no-create-home --shell /usr/sbin/nologin "$user"
fi
for group in docker video render; do
    if getent group "$group" >/dev/null; then usermod -aG "$group" "$user"; fi
done
install -d -m 0750 -o root -g "$user" "$(dirname "$config")"
install -d -m 0700 -o "$user" -g "$user" "$state"
[ -d "$models" ] || install -d -m 0755 -o "$user" -g "$user" "$models"
[ -e "$config" ] || install -m 0640 -o root -g "$user" "$here/agent.json.example" "$config"

set_field() {
    "$base/current/bin/python" - "$config" "$1" "$2" <<'PYTHON'
import json, os, sys
path, name, value = sys.argv[1:]
with open(path) as file:
    fields = json.load(file)
fields[name] = value
with open(path + ".new", "w") as file:
    json.dump(fields, file, indent=2)
    file.write("\n")
before = os.stat(path)
os.chown(path + ".new", before.st_uid, before.st_gid)
os.chmod(path + ".new", before.st_mode & 0o777)
os.replace(path + ".new", path)
PYTHON
}

left=$#
while [ "$left" -gt 0 ]; do
    word=$1; shift; left=$((left - 1))
    case $word in
        --llama-server|--vllm-command|--nvidia-smi)
            [ "$left" -gt 0 ] || fail "$word needs a value"
            set_field "$(echo "${word#--}" | tr - _)" "$1"
            echo "Set $(echo "${word#--}" | tr - _) in $config"
            shift; left=$((left - 1)) ;;
        *) set -- "$@" "$word" ;;
    esac
done

systemd=no
if [ -d /run/systemd/system ]; then
    systemd=yes
    install -m 0644 "$here/mirbad-agent.service" /etc/systemd/system/mirbad-agent.service
    systemctl daemon-reload
fi

if [ $# -gt 0 ]; then
    runuser -u "$user" -- /usr/local/bin/mirbad-agent join --config "$config" "$@"
fi
finished=yes
if [ ! -e "$state/identity/current" ]; then
    echo "Installed, but not joined. Run the join command from Nodes > Add node on the master."
    exit 0
fi
if [ $systemd = yes ]; then
    systemctl enable -q mirbad-agent
    systemctl restart mirbad-agent
    echo "mirbad-agent is running (systemctl status mirbad-agent). Allow TCP 9443 from the master's address only."
else
    echo "systemd is not running. Start the agent with:"
    echo "  runuser -u $user -- /usr/local/bin/mirbad-agent serve --config $config"
fi
