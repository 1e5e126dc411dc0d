"""Tests of `edgeinfer.tokenizer`, with llama.cpp as the oracle where it is installed."""
