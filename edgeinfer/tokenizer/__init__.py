"""Text to token ids and back, from the vocabulary in a GGUF file, with llama.cpp's ids. `load_tokenizer` is the way in."""

from edgeinfer.tokenizer.base import Tokenizer
from edgeinfer.tokenizer.load import load_tokenizer, tokenizer_from_metadata
from edgeinfer.tokenizer.special import TokenType
from edgeinfer.tokenizer.stream import StreamDecoder

__all__ = ["StreamDecoder", "TokenType", "Tokenizer", "load_tokenizer", "tokenizer_from_metadata"]
