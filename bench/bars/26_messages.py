"""Bar 26: what a user reads when a backend, a provider, a dialect or a model cannot be had: one line with what was found and what to do.

    python bench/bars/26_messages.py

A backend that is not installed is tried in a virtual environment with all packages of this one but its library. OpenVINO and QNN replace or join
onnxruntime in environments of their own (`make provider-environments`, or EDGEINFER_PROVIDERS names the folder): with these a provider without a device and
a dialect that it does not take are tried on the real ones. Each message is printed. Bars: the exit code, one line on standard error that begins with
"edgeinfer: error:", nothing on standard output, no traceback, and in the line what was found, what was expected and what to do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, bar, environment, finish, model_file

sys.path.insert(0, str(ROOT))
from tests.support.tiny_models import tiny_gemma3, tiny_llama

MODEL = "smollm2-135m"
REQUEST = ("run", MODEL, "-p", "The capital of France is", "-n", "4")
FAILED, REFUSED = 1, 2
NOISE = "# LIBNATIVE"  # QNN's simulator writes this past everybody


def message(name: str, arguments: Sequence[str], code: int, says: Sequence[str], python: str | Path = sys.executable) -> None:
    """Runs a command that must be refused. `says`: patterns that must be in its one line."""
    command = [str(python), "-m", "edgeinfer.cli.main", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment(), check=False)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    print(f"\n$ edgeinfer {' '.join(arguments)}")
    for line in [*ended.stdout.splitlines(), *lines]:
        print(f"  {line}")
    output = [line for line in ended.stdout.splitlines() if line.strip() and not line.strip().startswith(NOISE)]
    clear = len(lines) == 1 and lines[0].startswith("edgeinfer: error: ") and not output
    missing = [pattern for pattern in says if not re.search(pattern, lines[-1] if lines else "")]
    figures = f"exit code {ended.returncode} ({code} expected), {len(lines)} line{'s' if len(lines) != 1 else ''}"
    bar(name, ended.returncode == code and clear and not missing, figures + (f", without {' and '.join(missing)}" if missing else ""))


def environment_without(folder: Path, *packages: str) -> Path:
    """The interpreter of a new virtual environment that has links to all packages of this one but these."""
    venv.create(folder, symlinks=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for source in dict.fromkeys(Path(entry).resolve() for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))):
        for entry in source.iterdir():
            left_out = entry.suffix == ".pth" or any(entry.name.replace("-", "_").startswith(package) for package in packages)
            if not left_out and not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def backends(folder: Path) -> None:
    python = environment_without(folder / "without", "onnx", "llama_cpp")
    message("backend onnx, not installed", [*REQUEST, "--backend", "onnx"], FAILED, ["onnxruntime", "not installed", r"pip install"], python)
    message("backend llamacpp, not installed", [*REQUEST, "--backend", "llamacpp"], FAILED, ["llama-cpp-python", "not installed", r"pip install"], python)
    message("export, onnx not installed", ["export", MODEL, str(folder / "a.onnx")], FAILED, ["onnx", "not installed", r"pip install"], python)
    broken = environment_without(folder / "broken", "llama_cpp")
    (package,) = (folder / "broken").glob("lib/python*/site-packages")
    (package / "llama_cpp.py").write_text("raise OSError('libllama.so: cannot open shared object file')\n", encoding="utf-8")
    message("backend llamacpp, broken", [*REQUEST, "--backend", "llamacpp"], FAILED, ["llama-cpp-python", "cannot open shared", r"pip install"], broken)
    message("a backend that there is not", [*REQUEST, "--backend", "tensorrt"], REFUSED, ["'tensorrt'", "choose one of numba, llamacpp, onnx"])
    message("a provider of a backend without", [*REQUEST, "--provider", "openvino"], REFUSED, ["'openvino'", "only the backend onnx", "--backend onnx"])


def providers() -> None:
    onnx = [*REQUEST, "--backend", "onnx"]
    message("a provider that there is not", [*onnx, "--provider", "npu9000"], REFUSED, ["'npu9000'", "choose .*openvino", "edgeinfer doctor"])
    message("a provider that is not installed", [*onnx, "--provider", "coreml"], REFUSED, ["coreml is not in this environment", "pip install", "macOS"])
    message("an option that is none", [*onnx, "--provider", "openvino:fast"], REFUSED, ["'openvino:fast'", "key=value", "such as"])
    message("a dialect that there is not", [*onnx, "--provider", "cpu:dialect=opset99"], REFUSED, ["'opset99'", "choose one of cpu, opset21, opset23"])
    message("a share that is none", [*onnx, "--provider", "cpu", "--min-share", "3"], REFUSED, ["minimum share is 3", "between 0 and 1"])


def openvino(python: str, model: Path) -> None:
    onnx = ["run", str(model), "-p", "a", "-n", "2", "--backend", "onnx", "--provider"]
    device = ["no device of the kind 'npu'", "offers cpu", "leave device out"]
    message("openvino without an NPU", [*onnx, "openvino:device=npu"], REFUSED, device, python)
    refused = ["takes only [0-9]+ of [0-9]+ nodes", "dialect cpu", "at least 100% was asked for", r"known to take \(openvino:dialect=opset21"]
    message("a dialect that openvino does not take whole", [*onnx, "openvino:dialect=cpu", "--min-share", "1"], REFUSED, refused, python)
    gemma = str(tiny_gemma3(model.with_name("gemma.gguf")))
    refused = ["refuses the graph in the dialect cpu", "known to take opset21"]
    message("a dialect that openvino refuses", ["run", gemma, *onnx[2:], "openvino:dialect=cpu"], REFUSED, refused, python)


def qnn(python: str, model: Path) -> None:
    onnx = ["run", str(model), "-p", "a", "-n", "2", "--backend", "onnx", "--provider"]
    message("qnn without an NPU", [*onnx, "qnn:device=npu"], REFUSED, ["no device of the kind 'npu'", "offers cpu", "leave device out"], python)
    refused = ["takes only [0-9]+ of [0-9]+ nodes", "dialect opset23", "at least 100% was asked for", r"known to take \(qnn:dialect=cpu"]
    message("a dialect that qnn does not take whole", [*onnx, "qnn:dialect=opset23", "--min-share", "1"], REFUSED, refused, python)
    taken = ["takes only 0 of [0-9]+ nodes", "dialect cpu", "at least 50% was asked for", "choose another provider"]
    message("a graph of which qnn's graphics processor takes nothing", [*onnx, "qnn:backend_type=gpu"], REFUSED, taken, python)


def architectures(folder: Path) -> None:
    unknown = tiny_llama(folder / "unknown.gguf", metadata={"general.architecture": "hyena"})
    target = str(folder / "model.onnx")
    message("an architecture that is not known", ["export", str(unknown), target], REFUSED, ["'hyena'", "llama", "supported|known|runs"])
    odd = tiny_llama(folder / "odd.gguf", head_size=20)
    says = ["llama models need a rope of 10 pairs", "no form in edgeinfer's ONNX dialect 'cpu'", "use another dialect, or the numba backend"]
    message("a model that the dialect cannot express", ["export", str(odd), target, "--dialect", "cpu"], REFUSED, says)
    says = ["'cuda'", "choose one of cpu, opset21, opset23"]
    message("a dialect that export does not have", ["export", str(odd), target, "--dialect", "cuda"], REFUSED, says)
    left = len(list(folder.glob("model.onnx*")))
    bar("a refused export leaves no file", left == 0, f"{left} files")


def main() -> None:
    model_file(MODEL)
    environments = Path(os.environ.get("EDGEINFER_PROVIDERS") or ROOT / ".cache" / "providers")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backends(folder)
        providers()
        architectures(folder)
        model = tiny_llama(folder / "tiny.gguf")
        for provider, judge in (("openvino", openvino), ("qnn", qnn)):
            python = environments / provider / "bin" / "python"
            if python.exists():
                judge(str(python), model)
            else:
                bar(f"{provider}: without a device", False, f"there is no environment {python.parent.parent}; make it with: make provider-environments")
    finish()


main()
