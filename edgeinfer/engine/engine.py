"""`Engine`, the class that users import: load a model, generate, stream, chat, score, embed. Everything behind it is reached through it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, BackendOptions, Capabilities
from edgeinfer.backends.load import load_backend
from edgeinfer.core.cache_types import CACHE_TYPES
from edgeinfer.core.errors import ContextLengthError, InvalidRequestError
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.results import Completion, StreamEvent
from edgeinfer.core.steps import OutputKind
from edgeinfer.engine.embedding import Embedding, chosen_pooling
from edgeinfer.engine.generation import Generation
from edgeinfer.engine.inputs import Prompt, checked_option, checked_params, checked_token_ids, for_each_prompt, params_for_each, prompt_token_ids
from edgeinfer.engine.loop import EngineLoop
from edgeinfer.engine.parts import Template, Tokenizer
from edgeinfer.engine.scoring import Block, Scoring
from edgeinfer.engine.streams import Blocks, Stream, taken
from edgeinfer.scheduler import Scheduler
from edgeinfer.scheduler import Sequence as ScheduledSequence

DEFAULT_CONTEXT = 4096

Messages = Sequence[Mapping[str, Any]]


class Engine:
    """A loaded model. Thread-safe: requests of any number of threads are batched together, and closing ends them cleanly.

    Wherever a prompt is taken, a list of token ids works too. All methods raise EngineClosedError after `close`, and in a process that was forked
    from the one that loaded the engine; InvalidRequestError for input that cannot be honoured; ContextLengthError for a prompt that does not fit.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        metadata: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
        prefix_reuse: bool = True,
        backend_choice: str | None = None,
    ) -> None:
        """Joins the parts; `Engine.load` is what users call. The engine owns `backend` from here on and closes it."""
        scheduler = Scheduler(backend, prefix_reuse)
        self._backend = backend
        self._backend_choice = backend_choice
        self._tokenizer = tokenizer
        self._metadata = metadata or {}
        self._template: Template | None = None
        self._loop = EngineLoop(scheduler, backend)
        # The finalizer knows the loop, not the engine: it runs when the engine is collected and, if it never is, before the interpreter goes down.
        self._finalizer = weakref.finalize(self, self._loop.close, quietly=True)
        self._context = scheduler.context
        self._warnings = [*warnings, *backend.capabilities.warnings]
        if self._context < backend.capabilities.context:
            self._warnings.append(
                f"the KV cache has room for {self._context} tokens, so the context is {self._context} instead of {backend.capabilities.context}"
            )

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        backend: str = "numba",
        context: int | None = None,
        threads: int | None = None,
        *,
        chunk: int | None = None,
        cache_tokens: int | None = None,
        cache_type: str | None = None,
        instruction_set: str | None = None,
        maximum_sequences: int | None = None,
        prefix_reuse: bool = True,
        provider: str | None = None,
        minimum_share: float | None = None,
        prewarm: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Engine:
        """Loads a GGUF file, or the model of a card that was pulled.

        `backend`: numba, llamacpp or onnx; auto: the fastest by measurement on this machine (`backend_choice` tells which, and why); fake: for tests.
        `context`: tokens that a prompt and its answer may have together; default: what the file was trained for, at most 4,096. `threads`: default:
        what this process may use. `chunk`: rows of a step at most. `cache_tokens`: tokens that all sequences together may keep; default: decided by
        the memory plan. `cache_type`: f16, f32, q8_0 or q16_0; default: the fastest of the backend. `instruction_set`: a level's name, to force it.
        `maximum_sequences`: sequences that run together. `prefix_reuse`: False computes every prompt from its start; the answers are the same.
        `provider`: of ONNX Runtime, for the backend onnx: `NAME[:key=value,...]`, or auto; default: its CPU provider. `minimum_share`: of a graph's nodes,
        that the provider must run, between 0 and 1; `capabilities.placement` says who runs how many. `prewarm`: kernels that some requests alone need
        are compiled now, if they are missing, instead of beside the first such request, which is answered without them.
        `progress` is called while weights are loaded, with the bytes done and the bytes in all.

        Raises ModelNotFoundError, ModelFileError, UnsupportedModelError, MemoryPlanError, BackendUnavailableError or InvalidRequestError.
        """
        from edgeinfer.gguf.reader import GGUFFile
        from edgeinfer.model.dims import trained_context
        from edgeinfer.tokenizer import load_tokenizer

        if cache_type is not None and cache_type not in CACHE_TYPES:
            raise InvalidRequestError(f"cache_type is {cache_type!r}; it must be one of {', '.join(CACHE_TYPES)}")
        context = checked_option("context", context, 2)
        defaults = BackendOptions(context=DEFAULT_CONTEXT)
        path = _resolve(model)
        warnings = []
        file = GGUFFile.open(path)
        try:
            tokenizer = load_tokenizer(file)
            metadata = dict(_template_metadata(file.metadata))
            trained = trained_context(file.metadata)
            if context is None:
                context = min(DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)
            elif trained is not None and context > trained:
                warnings.append(f"the context of {context} tokens is above the {trained} that the model was trained for; answers may get worse beyond")
            options = BackendOptions(
                context=context,
                threads=checked_option("threads", threads, 1),
                cache_tokens=checked_option("cache_tokens", cache_tokens, 1),
                maximum_step_rows=checked_option("chunk", chunk, 1) or defaults.maximum_step_rows,
                maximum_sequences=checked_option("maximum_sequences", maximum_sequences, 1) or defaults.maximum_sequences,
                instruction_set=instruction_set,
                cache_type=cache_type,
                provider=provider,
                minimum_share=minimum_share,
                prewarm=prewarm,
            )
            if backend == "auto":
                from edgeinfer.backends.choice import load_auto

                loaded, choice = load_auto(path, options, progress, file)
                return cls(loaded, tokenizer, metadata, warnings, prefix_reuse, str(choice))
            return cls(load_backend(backend, path, options, progress, file), tokenizer, metadata, warnings, prefix_reuse)
        except BaseException:
            file.close()
            raise

    # What it is ----------------------------------------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What the backend promises, with a line about itself."""
        return self._backend.capabilities

    @property
    def backend_choice(self) -> str | None:
        """Which backend `auto` took, and why; None when a backend was named."""
        return self._backend_choice

    @property
    def memory_plan(self) -> MemoryPlan:
        """What the model was planned to take."""
        return self._backend.memory_plan

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not as asked for, or deserves attention, since loading."""
        return tuple(self._warnings)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._context

    @property
    def vocabulary(self) -> int:
        """Token ids go from 0 to this, exclusive."""
        return self.capabilities.vocabulary

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def closed(self) -> bool:
        return self._loop.closed

    # Text ----------------------------------------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `add_special`: with what the file says to put at its ends; `parse_special`: names of special tokens in the text become those tokens.
        """
        self._loop.require_open()
        return self._tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        self._loop.require_open()
        return self._tokenizer.decode(checked_token_ids(ids, self._tokenizer.vocabulary_size))

    # Generation ----------------------------------------------------------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Continues a raw prompt: BOS as the file says, special tokens in the text are not parsed."""
        return self.generate_many([prompt], params)[0]

    def generate_many(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None) -> list[Completion]:
        """Continues prompts together, one SamplingParams for all or one for each. All are checked before any runs; the first error ends all."""
        self._loop.require_open()
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise InvalidRequestError("prompts must be a list of prompts; for a single one there is generate()")
        all_params = params_for_each(params, len(prompts))
        return self._complete(for_each_prompt(prompts, self._checked_prompt), all_params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamEvent]:
        """Continues a raw prompt, an event for each token; the last one carries the completion. Dropping the iterator ends the generation.

        The request is checked and starts at once, not with the first `next`.
        """
        self._loop.require_open()
        return self._stream(self._checked_prompt(prompt), checked_params(params))

    def chat(self, messages: Messages, params: SamplingParams | None = None, tools: Messages | None = None) -> Completion:
        """The assistant's answer to messages of the form {"role": ..., "content": ...}, a content being a text or a list of {"type": "text", "text": ...}.

        Raises ChatTemplateError for a model without a chat template.
        """
        return self._complete([self._chat_prompt(messages, tools)], [checked_params(params)], answers=True)[0]

    def chat_stream(self, messages: Messages, params: SamplingParams | None = None, tools: Messages | None = None) -> Iterator[StreamEvent]:
        """Like `chat`, streamed like `stream`."""
        return self._stream(self._chat_prompt(messages, tools), checked_params(params), answers=True)

    # Scores --------------------------------------------------------------------------------------------------------------------------------------

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """float32[tokens, vocabulary]: row i scores the token after `token_ids[:i + 1]`. The same kernels and bits as in generation."""
        ids = self._checked_scoring_ids(token_ids)
        result = np.empty((len(ids), self.vocabulary), dtype=np.float32)
        for start, block in self._iterate_logits(ids):
            result[start : start + len(block)] = block
        return result

    def iterate_logits(self, token_ids: Sequence[int]) -> Iterator[Block]:
        """The rows of `logits` in order, as (first position, float32[rows, vocabulary]); at most two blocks are in memory. Checked at once."""
        return self._iterate_logits(self._checked_scoring_ids(token_ids))

    def embed(self, prompts: Sequence[Prompt], pooling: str | None = None, normalize: bool = True) -> list[NDArray[np.float32]]:
        """Embeddings, an array for each prompt: float32[width], or float32[tokens, width] with pooling "none".

        Texts get what the file says to put at their ends; their special tokens are not parsed. `pooling` of the final hidden states: "mean" of all
        tokens, "last" or "cls" (first) token, "none"; default: what the file says, else mean. `normalize`: divide by the Euclidean length.

        Prompts run together, and an embedding is what it is alone: the same bits where the backend promises them. Raises InvalidRequestError for a
        backend that gives no hidden states, ContextLengthError for a prompt beyond the context.
        """
        self._loop.require_open()
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise InvalidRequestError("prompts must be a list of texts or of lists of token ids; for a single one give a list of one")
        if OutputKind.HIDDEN not in self.capabilities.output_kinds:
            raise InvalidRequestError(
                f"this backend gives no hidden states, of which embeddings are made ({self.capabilities.description}); load the model with backend='numba'"
            )
        pooling = chosen_pooling(pooling, self._metadata)
        started: list[tuple[Embedding, ScheduledSequence]] = []
        try:
            for ids in for_each_prompt(prompts, self._embedded_ids):
                embedding = Embedding(len(ids), pooling, normalize)
                started.append((embedding, self._loop.submit(ids, embedding.first_position, embedding, wants_hidden=True)))
            return [taken(embedding.queue) for embedding, _ in started]
        finally:
            for _, sequence in started:
                self._loop.cancel(sequence)

    # End -----------------------------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives back memory and threads. Waits for the running step; requests in flight end with EngineClosedError. May be called again."""
        self._loop.close()
        self._finalizer.detach()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine cannot be pickled or copied: it holds threads and mapped memory; load one in each process")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Inside --------------------------------------------------------------------------------------------------------------------------------------

    def _checked_prompt(self, prompt: Prompt) -> list[int]:
        return self._fitting(prompt_token_ids(prompt, self._tokenizer, self.vocabulary))

    def _chat_prompt(self, messages: Messages, tools: Messages | None) -> list[int]:
        self._loop.require_open()
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
            raise InvalidRequestError("messages must be a list of at least one message, each a mapping with 'role' and 'content'")
        if self._template is None:
            from edgeinfer.chat import ChatTemplate, ChatTokenizer

            tokenizer = cast(ChatTokenizer, self._tokenizer)  # tests bring tokenizers that cannot chat; they bring no template either
            self._template = ChatTemplate.from_metadata(self._metadata, tokenizer)
        ids = checked_token_ids(self._template.encode(messages, tools=tools, add_generation_prompt=True), self.vocabulary)
        if not ids:
            raise InvalidRequestError("the chat template makes an empty prompt of these messages")
        return self._fitting(ids)

    def _fitting(self, ids: list[int]) -> list[int]:
        if len(ids) >= self._context:
            raise ContextLengthError(len(ids), self._context)
        return ids

    def _checked_scoring_ids(self, token_ids: Sequence[int]) -> list[int]:
        self._loop.require_open()
        ids = checked_token_ids(token_ids, self.vocabulary)
        if not ids:
            raise InvalidRequestError("there are no token ids: the list, or the text that they are made of, is empty; give at least one token")
        if len(ids) > self._context:
            raise ContextLengthError(
                len(ids),
                self._context,
                f"{len(ids)} tokens do not fit the context of {self._context}; score fewer or load the model with a larger context",
            )
        return ids

    def _embedded_ids(self, prompt: Prompt) -> list[int]:
        return self._checked_scoring_ids(self._tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else prompt)

    def _start(self, ids: list[int], params: SamplingParams, streaming: bool, answers: bool) -> tuple[Generation, ScheduledSequence]:
        # SentencePiece marks a space before the first word of a text, which is not shown. What continues a prompt is no first word; an answer is.
        starts_text = answers or all(token == self._tokenizer.bos_id for token in ids)
        token_stream = self._tokenizer.stream(skip_special=True, starts_sequence=starts_text)
        generation = Generation(params, len(ids), self._context, self._tokenizer.end_of_generation_ids, token_stream, streaming)
        return generation, self._loop.submit(ids, len(ids) - 1, generation)

    def _complete(self, prompts: list[list[int]], params: list[SamplingParams], answers: bool = False) -> list[Completion]:
        started: list[tuple[Generation, ScheduledSequence]] = []
        try:
            for ids, item in zip(prompts, params, strict=True):
                started.append(self._start(ids, item, False, answers))
            return [_completion(generation) for generation, _ in started]
        finally:
            for _, sequence in started:
                self._loop.cancel(sequence)

    def _stream(self, ids: list[int], params: SamplingParams, answers: bool = False) -> Iterator[StreamEvent]:
        generation, sequence = self._start(ids, params, True, answers)
        return Stream(self, self._loop, generation, sequence)

    def _iterate_logits(self, ids: list[int]) -> Iterator[Block]:
        scoring = Scoring(len(ids))
        sequence = self._loop.submit(ids, 0, scoring)
        return Blocks(self, self._loop, scoring, sequence, len(ids))


def _completion(generation: Generation) -> Completion:
    event = taken(generation.queue)
    assert event.completion is not None, "a generation that does not stream has one event, and it carries the completion"
    return event.completion


def _resolve(model: str | os.PathLike[str]) -> Path:
    from edgeinfer.cards import resolve_model

    return Path(resolve_model(model))


def _template_metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a chat template is made of, and how hidden states are pooled, taken out of the file before it is closed; the big arrays of the vocabulary stay
    where they are."""
    for key in metadata:
        if key.startswith(("tokenizer.chat_template", "general.")) or key.endswith(".pooling_type"):
            yield key, metadata[key]
