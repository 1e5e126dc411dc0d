"""Generating, streaming and scoring over the fake backend: texts, ends, counts, limits."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.core.errors import ContextLengthError, InvalidRequestError, NonFiniteError
from edgeinfer.core.results import Completion
from tests.engine.support import BEGIN, END, fake_engine, script

PROMPT = [1, 2, 3]


def _both(engine: Engine, params: SamplingParams) -> Completion:
    """The completion, after a check that the stream says the same."""
    whole = engine.generate(PROMPT, params)
    events = list(engine.stream(PROMPT, params))
    streamed = events[-1].completion
    assert streamed is not None and all(event.completion is None for event in events[:-1])
    assert "".join(event.text for event in events) == streamed.text == whole.text
    assert tuple(token for event in events for token in event.token_ids) == streamed.token_ids == whole.token_ids
    assert (streamed.finish_reason, streamed.usage) == (whole.finish_reason, whole.usage)
    assert events[-1].finish_reason == whole.finish_reason
    return whole


def test_an_end_token_ends_the_text_and_is_not_part_of_it() -> None:
    with fake_engine(script("hello", 3)) as engine:
        completion = _both(engine, SamplingParams(max_tokens=50))
    assert (completion.text, completion.finish_reason) == ("hello", "stop")
    assert completion.token_ids == tuple(b"hello")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (3, 5, 8)


def test_ignore_eos_goes_on_to_the_limit() -> None:
    with fake_engine(script("hi", 3)) as engine:
        completion = _both(engine, SamplingParams(max_tokens=6, ignore_eos=True))
    assert completion.token_ids == (*b"hi", END, END, END, END)
    assert completion.finish_reason == "length"


def test_an_immediate_end_gives_an_empty_text() -> None:
    with fake_engine(script("", 3)) as engine:
        completion = _both(engine, SamplingParams())
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (), "stop")


@pytest.mark.parametrize(("stop", "text"), [("nda sle", "The red pa"), (["a sleep"], "The red pand"), (("zz", "nda sle"), "The red pa")])
def test_stop_texts_end_generation_in_every_mode(stop: str | list[str] | tuple[str, ...], text: str) -> None:
    with fake_engine(script("The red panda sleeps on a tree", 3)) as engine:
        completion = _both(engine, SamplingParams(max_tokens=100, stop=stop))
    assert (completion.text, completion.finish_reason) == (text, "stop")
    assert completion.usage.completion_tokens == 17 + 2 * (stop == ["a sleep"])  # generation really ended: nothing after the match was computed


def test_half_a_stop_text_at_the_end_is_given_out() -> None:
    with fake_engine(script("abcEN", 3)) as engine:
        assert _both(engine, SamplingParams(stop="END")).text == "abcEN"
        assert _both(engine, SamplingParams(stop="END", max_tokens=4)).text == "abcE"


@pytest.mark.parametrize("text", ["🦙中é", "a中", "x🦙y"])
def test_characters_of_several_tokens_are_never_cut(text: str) -> None:
    with fake_engine(script(text, 3)) as engine:
        assert _both(engine, SamplingParams()).text == text
        for event in engine.stream(PROMPT, SamplingParams()):
            assert "\ufffd" not in event.text


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_character_that_max_tokens_cuts_ends_alike_in_both_modes(limit: int) -> None:
    with fake_engine(script("🦙", 3)) as engine:
        completion = _both(engine, SamplingParams(max_tokens=limit))
    assert (completion.text, completion.finish_reason) == ("\ufffd", "length")


def test_the_replacement_of_a_cut_character_can_complete_a_stop_text() -> None:
    with fake_engine(script(b"ab\xf0", 3)) as engine:
        completion = _both(engine, SamplingParams(stop="b\ufffd"))
    assert (completion.text, completion.finish_reason) == ("a", "stop")


def test_without_a_limit_generation_fills_the_context() -> None:
    with fake_engine(script("", 3, then=65), context=40) as engine:
        for limit in (None, 10**9, 37, 38):
            completion = _both(engine, SamplingParams(max_tokens=limit))
            assert (completion.usage.completion_tokens, completion.finish_reason) == (37, "length")


def test_prompts_at_the_border_of_the_context() -> None:
    with fake_engine(context=256) as engine:
        completion = engine.generate([5] * 255, SamplingParams(max_tokens=500))
        assert (completion.usage.completion_tokens, completion.finish_reason) == (1, "length")
        completion = engine.generate([5] * 200, SamplingParams(max_tokens=500, ignore_eos=True))
        assert (completion.usage.completion_tokens, completion.finish_reason) == (56, "length")
        for length in (256, 257, 5000):
            for call in (engine.generate, engine.stream):
                with pytest.raises(ContextLengthError, match=f"{length} tokens.*256") as refusal:
                    call([5] * length)
                assert (refusal.value.prompt_tokens, refusal.value.context) == (length, 256)
        assert engine.generate([5], SamplingParams(max_tokens=1)).usage.completion_tokens == 1


def test_a_cache_smaller_than_the_context_lowers_it_and_says_so() -> None:
    with fake_engine(context=1024, cache_tokens=256) as engine:
        assert engine.context == 256
        assert any("256" in warning and "1024" in warning for warning in engine.warnings)
        with pytest.raises(ContextLengthError, match=r"400.*256"):
            engine.generate([5] * 400)
        prompts = [[number] * 150 for number in range(2)] + [[number] * (10 * number + 1) for number in range(18)]
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        together = engine.generate_many(prompts, params)
        assert [one.token_ids for one in together] == [engine.generate(prompt, params).token_ids for prompt in prompts]


def test_many_prompts_answer_as_alone_each_with_its_own_parameters() -> None:
    limits = [1, 2, 3, 5, 8, 13, 40, 64, 7, 9]
    prompts = [[number, number + 1] * (number + 1) for number in range(10)]
    params = [SamplingParams(max_tokens=limit, temperature=limit % 2, seed=limit, ignore_eos=True) for limit in limits]
    with fake_engine() as engine:
        together = engine.generate_many(prompts, params)
        solo = [engine.generate(prompt, item) for prompt, item in zip(prompts, params, strict=True)]
        assert engine.generate_many([]) == []
    assert [one.token_ids for one in together] == [one.token_ids for one in solo]
    assert [one.usage.completion_tokens for one in together] == limits
    assert [one.text for one in together] == [one.text for one in solo]


def test_a_fresh_seed_is_reported_and_reproduces() -> None:
    params = SamplingParams(max_tokens=30, temperature=50.0, ignore_eos=True)
    with fake_engine() as engine:
        first, second = engine.generate(PROMPT, params), engine.generate(PROMPT, params)
        assert first.seed != second.seed and first.token_ids != second.token_ids
        engine.generate([9] * 100)  # other traffic
        again = engine.generate(PROMPT, SamplingParams(max_tokens=30, temperature=50.0, ignore_eos=True, seed=first.seed))
    assert again.token_ids == first.token_ids and again.seed == first.seed


def test_timings_are_in_order() -> None:
    with fake_engine() as engine:
        timings = engine.generate([1] * 50, SamplingParams(max_tokens=20, ignore_eos=True)).timings
    assert 0 < timings.first_token <= timings.total
    assert timings.prefill_tokens_per_second > 0 and timings.decode_tokens_per_second > 0


def test_a_prompt_seen_before_reports_cached_tokens() -> None:
    with fake_engine() as engine:
        assert engine.generate([1] * 50, SamplingParams(max_tokens=2)).usage.cached_tokens == 0
        assert engine.generate([1] * 50, SamplingParams(max_tokens=2)).usage.cached_tokens == 48


def test_logits_equal_those_of_generation_and_come_in_blocks() -> None:
    tokens = [number % 300 for number in range(150)]
    with fake_engine(chunk_free_rule) as engine:
        logits = engine.logits(tokens)
        assert logits.shape == (150, 512) and logits.dtype == np.float32
        blocks = list(engine.iterate_logits(np.array(tokens)))  # type: ignore[arg-type]
        assert [start for start, _ in blocks] == np.cumsum([0, *(len(block) for _, block in blocks[:-1])]).tolist()
        assert np.array_equal(np.concatenate([block for _, block in blocks]), logits)
        assert max(len(block) for _, block in blocks) <= 64
        assert int(np.argmax(logits[149])) == engine.generate(tokens, SamplingParams(max_tokens=1, ignore_eos=True)).token_ids[0]


def chunk_free_rule(tokens: object) -> int:
    return (sum(tokens) * 31 + len(tokens)) % 512  # type: ignore[call-overload, arg-type]


def test_logits_take_a_whole_context_and_no_more() -> None:
    with fake_engine(context=100) as engine:
        assert len(engine.logits([1] * 100)) == 100
        with pytest.raises(ContextLengthError, match=r"101.*100"):
            engine.logits([1] * 101)


@pytest.mark.parametrize("wrong", [[-1], [512], [10**18], [1.5], ["a", 1], [True], [[1], [2]], [np.float32(1)], [None], np.array([1.0])])
def test_ids_outside_the_vocabulary_are_refused_by_name(wrong: list[int]) -> None:
    with fake_engine() as engine:
        for call in (engine.generate, engine.stream, engine.logits, engine.iterate_logits, engine.detokenize):
            with pytest.raises(InvalidRequestError, match="512"):
                call(wrong)  # type: ignore[operator]
        with pytest.raises(InvalidRequestError):
            engine.generate_many([[1, 2], wrong])
        assert engine.generate(np.array([1, 2], dtype=np.uint16), SamplingParams(max_tokens=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", {"a": 1}.values, {}, {5: "five"}, {5, 6}, frozenset({5})])
def test_prompts_that_are_neither_text_nor_ids_are_refused(wrong: str) -> None:
    with fake_engine() as engine:
        with pytest.raises(InvalidRequestError):
            engine.generate(wrong)


def test_an_empty_prompt_starts_from_the_beginning_token_if_there_is_one() -> None:
    with fake_engine(add_bos=True) as engine:
        assert engine.generate("", SamplingParams(max_tokens=3)).usage.prompt_tokens == 1
        assert engine.generate("ab", SamplingParams(max_tokens=3)).usage.prompt_tokens == 3
        assert engine.tokenize("ab") == [97, 98] and engine.tokenize("ab", add_special=True) == [BEGIN, 97, 98]
    with fake_engine() as engine:
        for empty in ("", []):
            with pytest.raises(InvalidRequestError, match="empty"):
                engine.generate(empty)
        assert engine.generate(" ", SamplingParams(max_tokens=1)).usage.prompt_tokens == 1


def test_wrong_lists_and_parameters_are_refused_before_anything_runs() -> None:
    with fake_engine() as engine:
        for call in (
            lambda: engine.generate_many("abc"),
            lambda: engine.generate_many(["a", "b"], [SamplingParams()]),
            lambda: engine.generate_many(["a"], "greedy"),  # type: ignore[arg-type]
            lambda: engine.generate("a", {"max_tokens": 5}),  # type: ignore[arg-type]
            lambda: engine.chat([]),
            lambda: engine.chat("hello"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidRequestError):
                call()
        assert engine.generate("a", SamplingParams(max_tokens=1)).usage.completion_tokens == 1
        assert engine.capabilities.description.startswith("fake") and engine.memory_plan.cache > 0


def test_of_several_prompts_the_wrong_one_is_named() -> None:
    with fake_engine(context=16) as engine:
        for prompts, message in (
            (["a", "b", "too long " * 9], r"^prompts\[2\]: the prompt has 81 tokens"),
            (["a", [5, -1]], r"^prompts\[1\]: token id -1 \(item 1\)"),
            (["", "a"], r"^prompts\[0\]: the prompt is empty"),
            (["too long " * 9], "^the prompt has 81 tokens"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                engine.generate_many(prompts)


def test_an_error_of_the_model_reaches_the_caller_and_the_next_request_works() -> None:
    def rule(tokens: object) -> int:
        if 13 in tokens:  # type: ignore[operator]
            raise NonFiniteError("a NaN")
        return 65

    with fake_engine(rule) as engine:
        params = SamplingParams(max_tokens=4)
        for call in (lambda: engine.generate([1, 13]), lambda: list(engine.stream([1, 13])), lambda: engine.logits([1, 13])):
            with pytest.raises(NonFiniteError):
                call()
        with pytest.raises(NonFiniteError):
            engine.generate_many([[1, 2], [1, 13], [1, 3]], params)
        assert engine.generate([1, 2], params).text == "AAAA"
