"""ONNX: a model's program as an ONNX graph, and ONNX Runtime behind the backend contract.

`matrices` says how a quantized weight is held by ONNX operators, `graph` collects nodes and weights, `emitter` reads the program (one method a kind of
operation) with `cpu_dialect` and `standard_dialects` for what differs between targets, `export` writes a graph to disk. The libraries are imported
inside functions: without them the rest of edgeinfer works.
"""
