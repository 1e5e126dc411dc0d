"""`edgeinfer verify`: our kernels beside llama.cpp and the NumPy reference, by token ids, by teacher forcing and by greedy generation.

A face like the command line: it uses the engine, the reference and the backends, and nothing but the command line and the tests uses it.
"""
