"""Bar 24: the exported graphs of all three dialects pass onnx's checker, and their logits agree.

    python bench/bars/24_exported_graphs.py [--models NAME,NAME] [--tokens N]

`edgeinfer export MODEL OUT.onnx --dialect D` for each dialect (the command ends with an error when the checker refuses a graph), then ONNX Runtime on each
file, with token ids, a mask and an empty cache. Activations are float32 where the dialect leaves the choice to the runtime, and 8 bits in `cpu`. Bars: the
logits of `opset21` and `opset23` differ by at most 1e-4 of their size, those of `cpu` by at most 0.08, and its likeliest tokens are those of `opset21` in at
least 90 % of the places.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from common import COMMAND_LINE, at_least, at_most, finish, last_json, measured, model_file

DIALECTS = ("cpu", "opset21", "opset23")

LOGITS = """
import json, sys
import numpy, onnxruntime
path, target, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
given = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "position_ids": [list(range(len(ids)))]}
feeds = {}
for entry in session.get_inputs():
    if entry.name in given:
        feeds[entry.name] = numpy.array(given[entry.name], numpy.int64)
    else:
        feeds[entry.name] = numpy.zeros((1, entry.shape[1], 0, entry.shape[3]), numpy.float32)
numpy.save(target, session.run(["logits"], feeds)[0][0])
print(json.dumps({"version": onnxruntime.__version__}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m", help="names of cards with commas between")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of text (default 64)")
    options = parser.parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    for name, path in files.items():
        ids = str(np.random.default_rng(0).integers(300, 3000, options.tokens).tolist())
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for dialect in DIALECTS:
                output = Path(folder) / f"{dialect}.onnx"
                report = last_json([*COMMAND_LINE, "export", str(path), str(output), "--dialect", dialect, "--json"])
                version = measured(LOGITS, str(output), str(output.with_suffix(".npy")), ids)["version"]
                found[dialect] = np.load(output.with_suffix(".npy"))
                sizes = f"{report['graph_bytes'] / 1e3:.0f} kB of graph, {report['weight_bytes'] / 1e6:.0f} MB of weights"
                print(f"{name}, {dialect}: {report['nodes']} nodes, {sizes}; checked; ONNX Runtime {version}", flush=True)
                for file in report["files"]:
                    Path(file).unlink()
        size = np.linalg.norm(found["opset21"])
        at_most(f"{name}: opset23 from opset21", float(np.linalg.norm(found["opset23"] - found["opset21"]) / size), 1e-4, "of their size", 6)
        at_most(f"{name}: cpu from opset21", float(np.linalg.norm(found["cpu"] - found["opset21"]) / size), 0.08, "of their size", 4)
        same = float((found["cpu"].argmax(axis=1) == found["opset21"].argmax(axis=1)).mean())
        at_least(f"{name}: likeliest tokens of cpu", same, 0.9, "of the places")
    finish()


main()
