"""llama.cpp's server in this Python, from the ``xllamacpp`` wheel, with the options of ``llama-server``.

The agent runs this file as a script; it imports the standard library and the wheel only, so that it starts fast. The
key is read from LLAMA_API_KEY. Options that the wheel does not support are refused by name.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class BadOption(Exception):
    """An unknown option, or one with a bad value; the text is a sentence."""


_PARALLEL = 4
_CACHE_RAM_MIB = 256


def _on(_: str) -> bool:
    return True


def _off(_: str) -> bool:
    return False


def _switch(text: str) -> bool:
    if text not in {"on", "off", "1", "0", "true", "false"}:
        raise ValueError("on or off")
    return text in {"on", "1", "true"}


Reader = Callable[[str], Any]

_SWITCHES: dict[str, tuple[str, Reader]] = {
    "--metrics": ("endpoint_metrics", _on),
    "--slots": ("endpoint_slots", _on),
    "--no-slots": ("endpoint_slots", _off),
    "--embedding": ("embedding", _on),
    "--embeddings": ("embedding", _on),
    "--jinja": ("use_jinja", _on),
    "--no-jinja": ("use_jinja", _off),
    "--no-warmup": ("warmup", _off),
    "--context-shift": ("ctx_shift", _on),
    "--no-context-shift": ("ctx_shift", _off),
    "--no-cont-batching": ("cont_batching", _off),
    "--no-kv-offload": ("no_kv_offload", _on),
    "-nkvo": ("no_kv_offload", _on),
    "--kv-unified": ("kv_unified", _on),
    "-kvu": ("kv_unified", _on),
    "--swa-full": ("swa_full", _on),
    "--special": ("special", _on),
    "--check-tensors": ("check_tensors", _on),
    "--no-prefill-assistant": ("prefill_assistant", _off),
}
_VALUES: dict[str, tuple[str, Reader]] = {
    "--model": ("model.path", str),
    "--mmproj": ("mmproj.path", str),
    "--host": ("host", str),
    "--port": ("port", int),
    "--alias": ("alias", str),
    "--threads": ("cpuparams.n_threads", int),
    "-t": ("cpuparams.n_threads", int),
    "--threads-batch": ("cpuparams_batch.n_threads", int),
    "-tb": ("cpuparams_batch.n_threads", int),
    "--threads-http": ("n_threads_http", int),
    "--poll": ("cpuparams.poll", int),
    "--ctx-size": ("n_ctx", int),
    "-c": ("n_ctx", int),
    "--parallel": ("n_parallel", int),
    "-np": ("n_parallel", int),
    "--batch-size": ("n_batch", int),
    "-b": ("n_batch", int),
    "--ubatch-size": ("n_ubatch", int),
    "-ub": ("n_ubatch", int),
    "--n-predict": ("n_predict", int),
    "--predict": ("n_predict", int),
    "-n": ("n_predict", int),
    "--keep": ("n_keep", int),
    "--n-gpu-layers": ("n_gpu_layers", int),
    "--gpu-layers": ("n_gpu_layers", int),
    "-ngl": ("n_gpu_layers", int),
    "--main-gpu": ("main_gpu", int),
    "-mg": ("main_gpu", int),
    "--cache-reuse": ("n_cache_reuse", int),
    "--cache-ram": ("cache_ram_mib", int),
    "-cram": ("cache_ram_mib", int),
    "--rope-freq-base": ("rope_freq_base", float),
    "--rope-freq-scale": ("rope_freq_scale", float),
    "--slot-prompt-similarity": ("slot_prompt_similarity", float),
    "-sps": ("slot_prompt_similarity", float),
    "--sleep-idle-seconds": ("sleep_idle_seconds", int),
    "--chat-template": ("chat_template", str),
    "--pooling": ("pooling_type", str),
    "--flash-attn": ("flash_attn_type", str),
    "-fa": ("flash_attn_type", str),
    "--timeout": ("timeout_read", int),
    "-to": ("timeout_read", int),
    "--seed": ("sampling.seed", int),
    "-s": ("sampling.seed", int),
    "--temp": ("sampling.temp", float),
    "--top-k": ("sampling.top_k", int),
    "--top-p": ("sampling.top_p", float),
    "--min-p": ("sampling.min_p", float),
    "--repeat-penalty": ("sampling.penalty_repeat", float),
    "--fit": ("fit_params", _switch),
    "-fit": ("fit_params", _switch),
    "--verbosity": ("verbosity", int),
    "-lv": ("verbosity", int),
}
_WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "pooling_type": (
        "llama_pooling_type",
        {name.lower(): f"LLAMA_POOLING_TYPE_{name}" for name in ("NONE", "MEAN", "CLS", "LAST", "RANK")},
    ),
    "flash_attn_type": (
        "llama_flash_attn_type",
        {
            "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
            "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
            "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
        },
    ),
}
"""Fields that hold an enumeration of the wheel: its class there, and its member for each word."""


def read_options(arguments: Iterable[str]) -> dict[str, Any]:
    """Return fields and values of the options in `arguments`; a later one wins. BadOption names the bad one."""
    fields: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        if name in _SWITCHES:
            field, reader = _SWITCHES[name]
            fields[field] = reader("")
            continue
        if name not in _VALUES:
            raise BadOption(f"The llama.cpp engine of this node does not support the option '{argument}'.")
        field, reader = _VALUES[name]
        text = next(rest, None)
        if text is None:
            raise BadOption(f"The option '{argument}' needs a value.")
        if field in _WORDS and text not in _WORDS[field][1]:
            raise BadOption(
                f"Bad value '{text}' for the option '{argument}': use one of {', '.join(_WORDS[field][1])}."
            )
        try:
            fields[field] = reader(text)
        except ValueError:
            raise BadOption(f"Bad value '{text}' for the option '{argument}'.") from None
    return fields


def _fill(params: Any, fields: dict[str, Any], library: Any) -> None:
    for field, value in fields.items():
        target = params
        *path, last = field.split(".")
        for part in path:
            target = getattr(target, part)
        if field == "host":
            params.hostnames = [value]
        elif field == "alias":
            params.model_alias = {value}
        elif field in _WORDS:
            kind, words = _WORDS[field]
            setattr(target, last, getattr(getattr(library, kind), words[value]))
        else:
            setattr(target, last, value)


def main(arguments: list[str]) -> int:
    """Serve until a signal; the exit code is 1 when the model cannot be loaded, 2 for a bad option."""
    try:
        fields = read_options(arguments)
    except BadOption as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not Path(str(fields.get("model.path", ""))).is_file():
        sys.stderr.write(f"the model file {fields.get('model.path')} does not exist\n")
        return 1
    import xllamacpp

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server runs in C++ threads, which a Python handler never stops
    params = xllamacpp.CommonParams()
    params.ui = False
    # As llama-server does: parallel requests share one cache unless their number is stated. The cache of old prompts is
    # kept small.
    params.cache_ram_mib = _CACHE_RAM_MIB
    params.n_parallel, params.kv_unified = _PARALLEL, "n_parallel" not in fields
    threads = fields.get("cpuparams.n_threads")
    if threads is not None:
        fields.setdefault("cpuparams_batch.n_threads", threads)
    _fill(params, fields, xllamacpp)
    key = os.environ.get("LLAMA_API_KEY")
    params.api_keys = [key] if key else []
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError, OSError) as error:
        sys.stderr.write(f"llama.cpp could not start: {error}\n")
        return 1
    sys.stderr.write(f"serving on {server.listening_address}\n")
    sys.stderr.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
