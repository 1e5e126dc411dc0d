"""llama.cpp's tokenizer alone, without its weights: the oracle of token ids for `edgeinfer verify`, the bars and the tests.

Imports llama-cpp-python when the first vocabulary is opened, never before.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType

from edgeinfer.backends.llamacpp_library import forget_log, load_library, logged_reason, path_for_llamacpp
from edgeinfer.core.errors import ModelFileError


class LlamaCppVocabulary:
    """The vocabulary of one GGUF file, opened by llama.cpp. Also a context manager. Raises BackendUnavailableError, ModelFileError
    or the reader's errors.
    """

    def __init__(self, model: Path) -> None:
        library = load_library()
        parameters = library.llama_model_default_params()
        parameters.vocab_only = True
        self._library = library
        forget_log()
        self._model = library.llama_model_load_from_file(path_for_llamacpp(model), parameters)
        if not self._model:
            raise ModelFileError(f"llama.cpp cannot open the vocabulary of {model}: {logged_reason()}")
        self._vocabulary = library.llama_model_get_vocab(self._model)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return int(self._library.llama_vocab_n_tokens(self._vocabulary))

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The ids that llama.cpp gives `text`; the switches mean the same as in edgeinfer's tokenizer."""
        encoded = text.encode("utf-8")
        room = len(encoded) + 16  # a byte is a token at worst; BOS, EOS and a space in front come on top
        while True:
            ids = (ctypes.c_int32 * room)()
            count = self._library.llama_tokenize(self._vocabulary, encoded, len(encoded), ids, room, add_special, parse_special)
            if count >= 0:
                return list(ids[:count])
            room = -count  # too small: the negative of what is needed

    def close(self) -> None:
        """Gives the vocabulary back. Idempotent."""
        if self._model:
            self._library.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> LlamaCppVocabulary:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
