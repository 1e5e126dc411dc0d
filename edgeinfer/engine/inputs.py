"""What users hand to the engine, checked before anything runs: prompts, token ids, parameters, options.

Every refusal names the value and what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.requests import SamplingParams

if TYPE_CHECKING:
    from edgeinfer.engine.parts import Tokenizer

Prompt = str | Sequence[int]


def prompt_token_ids(prompt: Prompt, tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The token ids of a raw prompt: text gets BOS as the file says and its special tokens are not parsed; ids are taken as they are, after a check.

    Raises InvalidRequestError for an empty prompt, for ids outside the vocabulary and for anything that is neither text nor ids.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            ids.insert(0, tokenizer.bos_id)
        if not ids:
            raise InvalidRequestError("the prompt is empty, and this model has no beginning-of-text token to start from; give at least one character")
        return ids
    ids = checked_token_ids(prompt, vocabulary)
    if not ids:
        raise InvalidRequestError("the prompt is an empty list of token ids; give at least one token")
    return ids


def checked_token_ids(ids: Iterable[int], vocabulary: int) -> list[int]:
    """`ids` as a list of Python integers, each from 0 to `vocabulary` - 1; raises InvalidRequestError naming the id and the vocabulary's size."""
    if isinstance(ids, str | bytes | Mapping | Set) or not isinstance(ids, Iterable):  # the last two have no order of their own
        raise InvalidRequestError(f"expected a text or a list of token ids, found {_kind(ids)}")
    checked = []
    for index, value in enumerate(ids):
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise InvalidRequestError(
                f"item {index} of the token ids is {value!r} ({_kind(value)}); each must be a whole number from 0 to {vocabulary - 1} "
                f"(the vocabulary has {vocabulary} tokens)"
            )
        if not 0 <= value < vocabulary:
            raise InvalidRequestError(
                f"token id {value} (item {index}) is outside the vocabulary of {vocabulary} tokens; ids go from 0 to {vocabulary - 1}"
            )
        checked.append(int(value))
    return checked


def for_each_prompt(prompts: Sequence[Prompt], check: Callable[[Prompt], list[int]]) -> list[list[int]]:
    """`check` of every prompt; where there are several, an error says which one it is about (`prompts[57]: ...`)."""
    checked = []
    for place, prompt in enumerate(prompts):
        try:
            checked.append(check(prompt))
        except InvalidRequestError as error:
            if len(prompts) > 1:
                error.args = (f"prompts[{place}]: {error}",)
            raise
    return checked


def checked_params(params: SamplingParams | None) -> SamplingParams:
    """`params`, or the defaults for None."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"params is {_kind(params)}; it must be a SamplingParams or None")
    return params


def params_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One SamplingParams for each of `count` prompts, from one for all or a list of that length."""
    if params is None or isinstance(params, SamplingParams):
        return [checked_params(params)] * count
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise InvalidRequestError(f"params is {_kind(params)}; it must be a SamplingParams, a list of them or None")
    if len(params) != count:
        raise InvalidRequestError(f"there are {count} prompts but {len(params)} sampling parameters; give one for all or one for each")
    return [checked_params(item) for item in params]


def checked_option(name: str, value: object, low: int) -> int | None:
    """An engine option that is a whole number of at least `low`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidRequestError(f"{name} is {value!r}; it must be a whole number of at least {low}")
    return value


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
