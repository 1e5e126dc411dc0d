"""One engine in a process of its own, told what to run by lines of JSON on standard input, answering on standard output.

    python child.py ENGINE MODEL SETTINGS       ENGINE: edgeinfer, llamacpp, ik_llamacpp, ik_llamacpp-repack
                                                SETTINGS: {"threads": n, "context": n, "cache_tokens": n}

A script that stands alone: peers may live in an environment without edgeinfer, so it imports an engine's library only for that engine, and otherwise
the standard library. Every engine runs at its fastest settings: flash attention, one batch of 512, no logits but the last row.

Requests: {"command": "prefill", "ids": [...]} computes a prompt up to its first token; {"command": "decode", "ids": [...], "count": n} computes a
prompt and then n more tokens one at a time, and times only the latter; {"command": "decode_together", "prompts": [[...], ...], "count": n} the same
for several prompts, a token of each in one step; {"command": "forget_file"} gives back the pages of the model's file; {"command": "memory"}. Each is
answered by one object: {"seconds": s}, {"skipped": why} by an engine that cannot do it, or {"error": text} after a failure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, TextIO


class Runner(Protocol):
    """What every engine can do here. Seconds of wall clock."""

    def describe(self) -> dict[str, Any]: ...
    def prefill(self, ids: list[int]) -> float: ...
    def decode(self, ids: list[int], count: int) -> float: ...


class EdgeInferRunner:
    """Our engine as a user has it: through `generate`, with the scheduler and the sampler at work."""

    def __init__(self, model: str, threads: int, context: int, cache_tokens: int) -> None:
        from edgeinfer import Engine

        self._engine = Engine.load(model, backend="numba", threads=threads, context=context, cache_tokens=cache_tokens)

    def describe(self) -> dict[str, Any]:
        from edgeinfer.core.version import __version__

        capabilities = self._engine.capabilities
        return {"version": f"edgeinfer {__version__}", "settings": capabilities.description, "vocabulary": capabilities.vocabulary}

    def _generate(self, prompts: list[list[int]], count: int) -> list[Any]:
        """The timings of each prompt's generation."""
        from edgeinfer import SamplingParams

        completions = self._engine.generate_many(prompts, SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True))
        for completion in completions:
            if completion.usage.cached_tokens or completion.usage.completion_tokens != count:
                raise RuntimeError(f"the measurement is void: {completion.usage}, {count} new tokens were asked for and no cached ones")
        return [completion.timings for completion in completions]

    def prefill(self, ids: list[int]) -> float:
        return float(self._generate([ids], 1)[0].first_token)

    def decode(self, ids: list[int], count: int) -> float:
        return self.decode_together([ids], count)

    def decode_together(self, prompts: list[list[int]], count: int) -> float:
        """The longest time that a sequence took for its tokens; they run in the same steps, but for the first and the last one."""
        return max(float(timings.total - timings.first_token) for timings in self._generate(prompts, count + 1))


class LlamaCppRunner:
    """llama.cpp through the functions of its C interface, without sampling: tokens are given, so only its own work is timed."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import ctypes

        import llama_cpp

        self._library = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(model), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = context
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {context} tokens for {model}")
        self._memory = llama_cpp.llama_get_memory(self._context)

    def describe(self) -> dict[str, Any]:
        system = self._library.llama_print_system_info().decode()
        vocabulary = self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(self._model))
        settings = f"flash attention on, n_batch 512; {system.strip(' |')}"
        return {"version": f"llama-cpp-python {self._library.__version__}", "settings": settings, "vocabulary": vocabulary}

    def _evaluate(self, ids: list[int]) -> None:
        import ctypes

        for start in range(0, len(ids), 512):
            part = ids[start : start + 512]
            tokens = (ctypes.c_int32 * len(part))(*part)
            if self._library.llama_decode(self._context, self._library.llama_batch_get_one(tokens, len(part))):
                raise RuntimeError("llama_decode failed")
        self._library.llama_get_logits_ith(self._context, -1)  # waits until the row is there

    def prefill(self, ids: list[int]) -> float:
        self._library.llama_memory_clear(self._memory, True)
        began = time.perf_counter()
        self._evaluate(ids)
        return time.perf_counter() - began

    def decode(self, ids: list[int], count: int) -> float:
        self.prefill(ids)
        following = _following(ids, count)
        began = time.perf_counter()
        for token in following:
            self._evaluate([token])
        return time.perf_counter() - began


class IkLlamaCppRunner:
    """ik_llama.cpp, as `LlamaCppRunner`; `repack` has it interleave the rows of the weights while loading."""

    def __init__(self, model: str, threads: int, context: int, repack: bool) -> None:
        from importlib import import_module

        _ctypes_api: Any = import_module("ik_llama_cpp._ctypes_api")
        defaults = _ctypes_api.llama_model_default_params

        def parameters() -> Any:
            found = defaults()
            found.repack_tensors = repack
            return found

        _ctypes_api.llama_model_default_params = parameters  # the class below offers no such switch
        self._library = _ctypes_api
        self._repack = repack
        self._model = import_module("ik_llama_cpp").IkLlama(model, n_ctx=context, n_threads=threads, flash_attn=True, verbose=False)
        self._context = self._model._context.ctx
        self._batch = _ctypes_api.llama_batch_init(512, 0, 1)

    def describe(self) -> dict[str, Any]:
        # Without AVX-VNNI the package switches flash attention off by itself, because its own asserts fail on longer prompts.
        flash_attention = "on" if getattr(self._model, "_has_vnni", True) else "asked for, but switched off by the package (no AVX-VNNI here)"
        settings = f"flash attention {flash_attention}, n_batch 512, repacked: {'yes' if self._repack else 'no'}"
        return {"version": f"ik-llama-cpp-python {_version('ik-llama-cpp-python')}", "settings": settings, "vocabulary": None}

    def _evaluate(self, ids: list[int], position: int) -> None:
        for start in range(0, len(ids), 512):
            part = ids[start : start + 512]
            batch = self._batch
            batch.n_tokens = len(part)
            for index, token in enumerate(part):
                batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position + start + index, 1
                batch.seq_id[index][0], batch.logits[index] = 0, int(start + index == len(ids) - 1)
            if self._library.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
        self._library.llama_get_logits_ith(self._context, (len(ids) - 1) % 512)

    def prefill(self, ids: list[int]) -> float:
        self._library.llama_kv_cache_clear(self._context)
        began = time.perf_counter()
        self._evaluate(ids, 0)
        return time.perf_counter() - began

    def decode(self, ids: list[int], count: int) -> float:
        self.prefill(ids)
        following = _following(ids, count)
        began = time.perf_counter()
        for index, token in enumerate(following):
            self._evaluate([token], len(ids) + index)
        return time.perf_counter() - began


def _following(ids: list[int], count: int) -> list[int]:
    """`count` token ids to decode; which ones they are changes no engine's work."""
    return (ids * (count // len(ids) + 1))[:count]


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


def _mappings(model: str) -> list[tuple[int, int, int]]:
    """(start, end, resident bytes) of each mapping of the model's file in this process, by /proc/self/smaps."""
    found: list[tuple[int, int, int]] = []
    path, inside = os.path.realpath(model), False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split(None, 5)
            if not words[0].endswith(":"):  # the head of a mapping: addresses, permissions, offset, device, inode, path
                inside = len(words) == 6 and words[5].strip() == path
                if inside:
                    start, end = (int(part, 16) for part in words[0].split("-"))
                    found.append((start, end, 0))
            elif inside and words[0] == "Rss:":
                found[-1] = (*found[-1][:2], int(words[1]) * 1024)
    return found


def forget_file(model: str) -> int:
    """Gives back the pages of the model's file that are mapped here; whatever is read of them later is mapped again. Bytes given back."""
    import ctypes

    mappings = _mappings(model)
    madvise, dont_need = ctypes.CDLL(None).madvise, 4
    for start, end, _ in mappings:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dont_need)
    return sum(resident for _, _, resident in mappings) - sum(resident for _, _, resident in _mappings(model))


def memory() -> dict[str, int]:
    """Bytes of this process by /proc/self/status: private memory and file pages now, and the largest resident size so far."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("VmHWM", "RssAnon", "RssFile", "RssShmem"):
                found[name] = int(value.split()[0]) * 1024
    return {"private_bytes": found["RssAnon"] + found["RssShmem"], "file_bytes": found["RssFile"], "resident_peak_bytes": found["VmHWM"]}


def load_runner(engine: str, model: str, settings: Mapping[str, Any]) -> Runner:
    """The engine named on the command line, with the model loaded."""
    threads, context = settings["threads"], settings["context"]
    if engine == "edgeinfer":
        return EdgeInferRunner(model, threads, context, settings["cache_tokens"])
    if engine == "llamacpp":
        return LlamaCppRunner(model, threads, context)
    if engine in ("ik_llamacpp", "ik_llamacpp-repack"):
        return IkLlamaCppRunner(model, threads, context, repack=engine.endswith("-repack"))
    raise RuntimeError(f"there is no engine named {engine!r}")


def answer(runner: Runner, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs one request."""
    command = request["command"]
    if command == "prefill":
        return {"seconds": runner.prefill(request["ids"])}
    if command == "decode":
        return {"seconds": runner.decode(request["ids"], request["count"])}
    if command == "decode_together":
        if not hasattr(runner, "decode_together"):
            return {"skipped": "its runner does not decode several sequences together"}
        return {"seconds": runner.decode_together(request["prompts"], request["count"])}
    if command == "forget_file":
        return {"forgotten_bytes": forget_file(model)}
    if command == "memory":
        return dict(memory())
    raise RuntimeError(f"there is no command named {command!r}")


def serve(engine: str, model: str, settings: Mapping[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Loads, describes itself on one line, and answers until `requests` ends. Whatever fails is the last answer."""
    try:
        began = time.perf_counter()
        runner = load_runner(engine, model, settings)
        loaded = time.perf_counter() - began
        print(json.dumps({"engine": engine, "load_seconds": loaded, **runner.describe()}), file=answers, flush=True)
        for line in requests:
            print(json.dumps(answer(runner, model, json.loads(line))), file=answers, flush=True)
    except Exception as error:  # the parent shows it to the user
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


def main() -> None:
    """Keeps the real standard output for answers: libraries that print there must not garble them."""
    engine, model, settings = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(engine, model, json.loads(settings), sys.stdin, answers)


if __name__ == "__main__":
    main()
