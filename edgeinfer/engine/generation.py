"""A generation: takes the logits of one sequence, chooses tokens, turns them into text and knows when to end. One for each prompt.

The engine's thread calls `rows` and `chosen`; the caller's thread reads events from `queue`.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from collections.abc import Sequence as Items
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.results import Completion, StreamEvent, Timings, Usage
from edgeinfer.core.steps import can_be_drawn
from edgeinfer.engine.parts import TokenStream
from edgeinfer.engine.stops import StopMatcher
from edgeinfer.sampling import Sampler, fresh_seed
from edgeinfer.scheduler import Sequence, Verdict


class Generation:
    """Consumer of a sequence's rows.

    Events go to `queue`: one for each token when `streaming`, and at the end one with the completion, or the error that ended it. Both modes
    choose, cut and count in the same code. An end-of-generation token ends the text and is neither part of it nor of the token ids; the token that
    completes a stop text is counted.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_tokens: int,
        context: int,
        end_ids: Collection[int],
        token_stream: TokenStream,
        streaming: bool,
    ) -> None:
        self.queue: SimpleQueue[StreamEvent | BaseException] = SimpleQueue()
        self._accepted = time.perf_counter()
        self._first_token = 0.0
        self._seed = fresh_seed() if params.seed is None else params.seed
        self._sampler = Sampler(params, self._seed)
        self.drawn_with = None if self._sampler.greedy else params
        self._unseen = self._sampler.greedy or can_be_drawn(params)
        self._prompt_tokens = prompt_tokens
        room = context - prompt_tokens
        self._limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self.end_ids: Collection[int] = () if params.ignore_eos else end_ids
        self._token_stream = token_stream
        self._matcher = StopMatcher(params.stop_texts)
        self._streaming = streaming
        self._token_ids: list[int] = []
        self._pieces: list[str] = []

    @property
    def paused(self) -> bool:
        """Tokens are small: a generation never waits for its reader."""
        return False

    @property
    def unseen_tokens(self) -> int:
        """All that are still wanted, if a backend can choose them; but nobody waits for other tokens before the first is out."""
        return self._limit - len(self._token_ids) if self._unseen and self._token_ids else 0

    def uniforms(self, count: int) -> list[float]:
        first = len(self._token_ids)
        return [self._sampler.uniform(index) for index in range(first, first + count)]

    def rows(self, sequence: Sequence, first_position: int, logits: NDArray[np.float32], largest: NDArray[np.int32] | None) -> Verdict:
        return self.chosen(sequence, (self._sampler.sample(logits[-1], len(self._token_ids), None if largest is None else int(largest[-1])),))

    def chosen(self, sequence: Sequence, tokens: Items[int]) -> Verdict:
        if self._first_token == 0.0:
            self._first_token = time.perf_counter()
        for count, token in enumerate(tokens):
            if self._ends_with(sequence, token):
                return Verdict(tuple(tokens[:count]), finished=True)
        return Verdict(tuple(tokens))

    def _ends_with(self, sequence: Sequence, token: int) -> bool:
        """Takes the next token; True if it was the last."""
        if token in self.end_ids:
            self._finish(sequence, "stop", (), "")
            return True
        self._token_ids.append(token)
        text = self._matcher.push(self._token_stream.push(token))
        if self._matcher.matched:
            self._finish(sequence, "stop", (token,), text)
            return True
        if len(self._token_ids) >= self._limit:
            self._finish(sequence, "length", (token,), text)
            return True
        self._pieces.append(text)
        if self._streaming:
            self.queue.put(StreamEvent(text, (token,)))
        return False

    def failed(self, error: BaseException) -> None:
        self.queue.put(error)

    def _finish(self, sequence: Sequence, reason: str, token_ids: tuple[int, ...], text: str) -> None:
        if not self._matcher.matched:
            text += self._matcher.push(self._token_stream.finish())  # a cut character is shown once, here, and may complete a stop text too
            reason = "stop" if self._matcher.matched else reason
        if not self._matcher.matched:
            text += self._matcher.finish()
        self._pieces.append(text)
        completion = Completion(
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            finish_reason=reason,
            usage=Usage(self._prompt_tokens, len(self._token_ids), sequence.cached_tokens or 0),
            timings=self._timings(sequence.cached_tokens or 0),
            seed=self._seed,
        )
        self.queue.put(StreamEvent(text, token_ids, completion))

    def _timings(self, cached_tokens: int) -> Timings:
        first_token = self._first_token - self._accepted
        total = time.perf_counter() - self._accepted
        later = len(self._token_ids) - 1
        return Timings(
            first_token=first_token,
            total=total,
            prefill_tokens_per_second=(self._prompt_tokens - cached_tokens) / first_token if first_token > 0 else 0.0,
            decode_tokens_per_second=later / (total - first_token) if later > 0 and total > first_token else 0.0,
        )
