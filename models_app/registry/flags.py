"""Engine arguments that an operator may not set: they move the address, carry a key, read files or load code.

Address, key, weights and served names belong to the agent. The lists are by engine; other flags pass, and the engine
itself refuses what it does not know.
"""

from collections.abc import Sequence


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MANAGED: dict[str, frozenset[str]] = {
    "vllm": _flags(
        "--host --port --uds --fd --root-path --api-key --model --model-tag --served-model-name "
        "--tensor-parallel-size -tp --ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --enable-ssl-refresh "
        "--config --hf-token --hf-config-path --tokenizer --download-dir --chat-template --middleware "
        "--tool-parser-plugin --reasoning-parser-plugin --logits-processors --lora-modules --allowed-local-media-path "
        "--allowed-media-domains --log-config-file --otlp-traces-endpoint --kv-transfer-config --ec-transfer-config "
        "--kv-events-config --worker-cls --worker-extension-cls --scheduler-cls --io-processor-plugin "
        "--model-loader-extra-config --quantization-param-path --tool-server --profiler-config --grpc --master-addr "
        "--master-port --data-parallel-address -dpa --data-parallel-rpc-port -dpp --headless --nnodes -n "
        "--node-rank -r"
    ),
    "llama.cpp": _flags(
        "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hfd -hfrd --hf-repo-draft -hff --hf-file "
        "-hfv -hfrv --hf-repo-v -hffv --hf-file-v -hft --hf-token --host --port --reuse-port --path --api-prefix "
        "--api-key --api-key-file --ssl-key-file --ssl-cert-file -a --alias --log-file -mm --mmproj -mmu --mmproj-url "
        "--lora --lora-scaled --control-vector --control-vector-scaled -md --model-draft --spec-draft-model -mv "
        "--model-vocoder --grammar-file -jf --json-schema-file --chat-template-file --slot-save-path --models-dir "
        "--models-preset --models-max --media-path --rpc -f --file -bf --binary-file --in-file -lcs "
        "--lookup-cache-static -lcd --lookup-cache-dynamic --prompt-cache --tools --webui-config-file "
        "--ui-config-file --mcp-servers-config --props"
    ),
    "sim": _flags(
        "--host --port --api-key --served-name --meeting --rank --world-size --rendezvous-host --rendezvous-port"
    ),
}
# argparse takes any unambiguous beginning of a flag for the flag itself.
_ABBREVIATES = frozenset({"vllm"})


def refused(runtime: str, args: Sequence[str]) -> tuple[str, ...]:
    """Those of `args` that the engine would take for a managed flag, without their values."""
    managed = _MANAGED.get(runtime, frozenset())
    names = [argument.split("=", 1)[0] for argument in args if argument.startswith("-") and not _is_number(argument)]
    return tuple(name for name in names if name == "--" or _is_managed(runtime, name, managed))


def _is_managed(runtime: str, name: str, managed: frozenset[str]) -> bool:
    spelled = name.split(".", 1)[0].replace("_", "-") if name.startswith("--") else name
    if spelled in managed:
        return True
    return runtime in _ABBREVIATES and any(_argparse_reads(spelled, flag) for flag in managed)


def runs_code(runtime: str, args: Sequence[str]) -> bool:
    """Whether `args` let the engine run Python that comes with the weights, which is what pickles do."""
    names = [argument.split("=", 1)[0].replace("_", "-") for argument in args if argument.startswith("--")]
    return runtime in _ABBREVIATES and any(_argparse_reads(name, "--trust-remote-code") for name in names)


def _argparse_reads(name: str, flag: str) -> bool:
    """Whether argparse takes `name` for `flag`: a beginning of it, or a flag of one letter with its value attached."""
    attached = len(flag) == 2 and not name.startswith("--") and name.startswith(flag)
    return attached or (name not in ("-", "--") and flag.startswith(name))


def _is_number(argument: str) -> bool:
    try:
        float(argument)
    except ValueError:
        return False
    return True
