"""Bar 13: decode and prefill for files in q4_0, q4_k_m, q5_k_m, q6_k and q8_0, beside llama.cpp and ik_llama.cpp at their fastest settings.

    python bench/bars/13_formats.py [--rounds N] [--models NAME] [--formats q4_0,q8_0] [--folder FOLDER]

The files are made of a pulled model (qwen2.5-coder-0.5b; its own quantization is the source) by llama.cpp's quantizer through llama-cpp-python, in a
temporary folder, or kept in --folder. Rows that are no multiple of 256 wide cannot be K-quants: llama.cpp takes another type for those, and which types a
file holds is printed. Bars, 2 threads: no format under 1x decode of 96 and 2x prefill of 512 of the faster of the two llamas.
"""

from __future__ import annotations

import collections
import subprocess
import sys
import tempfile
from pathlib import Path

from beside import arguments, beside, faster_llama
from common import at_least, bar, finish, model_file, unable

from edgeinfer.benchmark.options import peer_interpreters
from edgeinfer.gguf.reader import GGUFFile

FORMATS = ("q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0")
DECODE, PREFILL = "decode 96", "prefill 512"
DECODE_AT_LEAST, PREFILL_AT_LEAST = 1.0, 2.0

QUANTIZE = """
import ctypes, sys
import llama_cpp
source, target, name = sys.argv[1:]
silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + name.upper())
parameters.allow_requantize = True
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)))
"""


def quantized(source: Path, name: str, folder: Path) -> Path:
    """The file of a format; made unless it is there. Ends the script when llama.cpp cannot make it."""
    path = folder / f"{source.stem}-{name}.gguf"
    if not path.exists():
        python = peer_interpreters({}).get("llamacpp", sys.executable)
        made = path.with_suffix(".part")
        run = subprocess.run([python, "-c", QUANTIZE, str(source), str(made), name], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            unable(f"llama.cpp's quantizer ended with code {run.returncode} for {name}: {run.stderr.strip()[-300:]} (make bench-peers makes the peers)")
        made.rename(path)
    return path


def types(path: Path) -> str:
    """How many bytes of the file's matrices are of which type."""
    sizes: collections.Counter[str] = collections.Counter()
    with GGUFFile.open(path) as file:
        for tensor in file.tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.format_name] += tensor.nbytes
    return ", ".join(f"{name} {size / sum(sizes.values()):.0%}" for name, size in sizes.most_common())


def main() -> None:
    parser = arguments(__doc__, rounds=5, models=("qwen2.5-coder-0.5b",))
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats with commas between")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    sources = [model_file(name) for name in options.models.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            for name in options.formats.split(","):
                path = quantized(source, name, folder)
                print(f"\n{path.name}: {path.stat().st_size / 1e6:.0f} MB; {types(path)}", flush=True)
                run = beside(path, options.rounds, prompt_lengths=(512,), batch_sizes=(1,), roofline=True)
                for measurement, required in ((DECODE, DECODE_AT_LEAST), (PREFILL, PREFILL_AT_LEAST)):
                    peer = faster_llama(run, measurement)
                    at_least(f"{path.stem}, {measurement}, against the faster llama ({peer})", run.ratio(peer, measurement), required)
    complete = set(FORMATS) <= set(options.formats.split(","))
    bar("all five formats were measured", complete, options.formats)
    finish()


main()
