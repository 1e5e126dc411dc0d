"""The engines that a benchmark can drive, and ours beside them. Only `benchmark.child` imports them, inside an engine's own process.

That process may run in an environment without edgeinfer: modules here import the standard library and each other, and an engine's library inside the
function that starts the engine.
"""
