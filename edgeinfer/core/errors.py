"""Every error that edgeinfer raises on purpose.

Each one says what was found, what was expected and what to do about it, in one human sentence or two. The faces (command line, server) print the
message and map the class to an exit code or a status; a traceback reaches a user only for a defect of ours. Anyone may import this module; it imports
nothing.
"""

from __future__ import annotations


class EdgeInferError(Exception):
    """Base of all errors that edgeinfer raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class ModelFileError(EdgeInferError):
    """The file is not a GGUF file, is cut off, or contradicts itself (a length beyond the end, a wrong element type, a lost shard)."""

    exit_code = 2


class UnsupportedModelError(EdgeInferError):
    """A well-formed file that asks for what edgeinfer lacks: an architecture, a quantization type, a metadata key that changes the result."""

    exit_code = 2


class ArchitectureFileError(EdgeInferError):
    """An architecture file (models/architectures/NAME.toml) has an unknown key, a wrong type or a value that the decoder has no meaning for."""


class TokenizerError(UnsupportedModelError):
    """The vocabulary is inconsistent, or needs a tokenizer or pre-tokenizer that edgeinfer does not know."""


class ChatTemplateError(EdgeInferError):
    """The chat template is missing, does not parse, was refused by the sandbox, or itself rejected the messages."""

    exit_code = 2


class InvalidRequestError(EdgeInferError, ValueError):
    """A request with a value that cannot be honoured: a negative temperature, a token id outside the vocabulary, an empty prompt without BOS."""

    exit_code = 2


class UnsupportedOptionError(InvalidRequestError):
    """An option that the chosen backend does not have, though others may: a cache type, an instruction set. `--backend auto` goes on to the next one."""


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the context. Holds both numbers."""

    def __init__(self, prompt_tokens: int, context: int, message: str | None = None) -> None:
        self.prompt_tokens = prompt_tokens
        self.context = context
        super().__init__(
            message
            or f"the prompt has {prompt_tokens} tokens, but the context holds {context} and one place is needed for the answer; "
            f"shorten the prompt or load the model with a context above {prompt_tokens}"
        )


class ModelNotFoundError(EdgeInferError):
    """No such file, or a model card that has not been pulled yet."""

    exit_code = 2


class PullError(EdgeInferError):
    """A model could not be fetched, or what was fetched is not what its card describes."""


class StorageError(EdgeInferError):
    """What was to be kept on disk (packed weights, ready-made kernels) could not be: no room, no permission, a folder that others can write to."""


class MemoryPlanError(EdgeInferError):
    """The model cannot fit into the memory that is available. The message holds the numbers and the remedies."""

    exit_code = 3


class BackendUnavailableError(EdgeInferError):
    """The backend asked for is unknown, or what it needs is not installed or does not work on this machine."""


class UnknownChoiceError(BackendUnavailableError):
    """A backend or an instruction set that does not exist, or that this processor lacks, was asked for by name."""

    exit_code = 2


class ProviderError(UnknownChoiceError):
    """An execution provider of ONNX Runtime that was asked for is unknown, not installed, without a device, refuses the graph, or runs too little of it."""


class NonFiniteError(EdgeInferError):
    """A step produced an infinity or a NaN (an overflow in the cache type, a damaged weight)."""


class StepAbortedError(EdgeInferError):
    """A step ended early because nobody wants it any more (`Step.abort`). Between a backend and the scheduler; no user sees it."""


class EngineClosedError(EdgeInferError, RuntimeError):
    """The engine was closed before the call."""
