"""Answering prompts with a fake engine: turns, skips, bounds, seeds, and shards that go on where they stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.files import canonical_json
from draftyard.artifacts.generations import read_split
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.generate import (
    ENGINE_FAILED,
    LATER_TURN,
    Answerer,
    GenerateReport,
    SplitPlan,
    count,
    ends_in_loop,
    generate_split,
    require_bounds,
    sample_seed,
)
from draftyard.engines.recovery import Recovery
from draftyard.engines.requests import EngineFailure, Finished, Request
from draftyard.errors import DraftyardError
from draftyard.params.generate import GenerateParams

END = 99


def params(**changes: Any) -> GenerateParams:
    values: dict[str, Any] = {
        "engine": "vllm",
        "endpoint_model": None,
        "max_new_tokens": 8,
        "holdout_max_new_tokens": 6,
        "max_model_len": 60,
        "temperature": 0.0,
        "top_p": 0.9,
        "samples_per_prompt": 1,
        "seed": 7,
        "chat_template_kwargs": {},
        "max_skipped_fraction": 0.0,
        "max_looping_fraction": 0.0,
    }
    return GenerateParams(**{**values, **changes})


class Letters:
    """A tokenizer whose tokens are characters; a template that ends each message in |."""

    def __init__(self) -> None:
        self.kwargs: list[dict[str, Any]] = []

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, return_dict: bool, **kwargs: Any
    ) -> list[int]:
        from jinja2 import TemplateError

        assert tokenize
        assert add_generation_prompt
        assert not return_dict
        self.kwargs.append(kwargs)
        if any(message["content"] == "forbidden" for message in messages):
            raise TemplateError("System role not supported")
        return [ord(c) for message in messages for c in f"{message['role'][0]}:{message['content']}|"] + [ord("a"), ord(":")]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i != END and i > 1)


class LettersEngine:
    """Answers last in, first out, as an engine may; `answer` maps the prompt's ids to the answer's. Dies on a prompt with !, refuses one with ?."""

    def __init__(self, answer: Callable[[list[int]], list[int]]) -> None:
        self.answer = answer
        self.waiting: list[Request] = []
        self.asked: list[Request] = []

    def add(self, request: Request) -> None:
        assert request.id not in [earlier.id for earlier in self.waiting]
        self.waiting.append(request)
        self.asked.append(request)

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Finished]:
        while self.waiting:
            request = self.waiting.pop()
            if ord("!") in request.token_ids:
                self.waiting.clear()
                raise EngineFailure("the engine was killed by SIGKILL")
            if ord("?") in request.token_ids:
                yield Finished(id=request.id, token_ids=[], finish_reason="", failure="refused by the server")
                continue
            output = [*self.answer(request.token_ids), END][: request.max_tokens]
            if on_step is not None:
                on_step(len(output))
            yield Finished(id=request.id, token_ids=output, finish_reason="stop" if output[-1] == END else "length")


def answerer(answer: Callable[[list[int]], list[int]] = lambda ids: [ord("y")], made: GenerateParams | None = None) -> Answerer:
    return Answerer(LettersEngine(answer), Letters(), made or params())


def asked(made: Answerer) -> list[Request]:
    return made._engine.asked  # type: ignore[attr-defined]


def prompt(name: str, *turns: str, system: str | None = None) -> Prompt:
    return Prompt(id=name, category="chat", system=system, turns=turns)


def answered(made: Answerer, prompts: list[tuple[Prompt, int]], report: GenerateReport, *, greedy: bool = True, new: int = 8) -> Any:
    return made.answer_shard(prompts, greedy=greedy, max_new_tokens=new, report=report, on_answers=lambda done, tokens: None)


# --- pure functions -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=16), st.integers(0, 40), st.integers(48, 60))
def test_a_tail_that_repeats_is_a_loop(unit: list[int], start: int, length: int) -> None:
    repeated = (unit * 60)[:length]
    assert ends_in_loop(list(range(100, 100 + start)) + repeated)


@pytest.mark.parametrize(
    "tokens",
    [[], [1] * 47, list(range(48)), [1] * 60 + [2], (list(range(17)) * 10), [1, 2] * 23 + [3, 1], [5] + [1] * 30 + [2] + [1] * 30],
)
def test_what_is_no_loop(tokens: list[int]) -> None:
    assert not ends_in_loop(tokens)


def test_the_period_may_be_16_and_no_longer() -> None:
    assert ends_in_loop(list(range(16)) * 5)
    assert not ends_in_loop(list(range(17)) * 5)


def test_seeds_depend_on_root_prompt_and_sample_and_on_nothing_else() -> None:
    seeds = {sample_seed(root, name, sample) for root in (0, 1) for name in ("a", "b", "a/0") for sample in (0, 1, 2)}
    assert len(seeds) == 18
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert sample_seed(0, "a", 0) == 0xD03369E0  # printf 0/a/0 | sha256sum


def report_of(answers: int = 10, looping: int = 0, **skipped: int) -> GenerateReport:
    names = {reason.replace("_", " "): [f"p{i}/0" for i in range(n)] for reason, n in skipped.items()}
    return GenerateReport(conversations=answers, answers=answers, looping=[f"l{i}/0" for i in range(looping)], skipped=names)


@pytest.mark.parametrize(
    ("report", "changes", "message"),
    [
        (report_of(0), {}, "the verifier answered none of 0 prompts: there were none"),
        (report_of(0, prompt_too_long=3), {"max_skipped_fraction": 1.0}, "the verifier answered none of 3 prompts: prompt too long"),
        (report_of(9, prompt_too_long=1), {}, r"1 of 10 prompts gave no usable answer \(prompt too long: p0/0\); generate.max_skipped_fraction=0.0 allows 0"),
        (report_of(17, prompt_too_long=1, empty_answer=2), {"max_skipped_fraction": 0.1}, "3 of 20 prompts .*empty answer: p0/0, p1/0.*allows 2"),
        (
            report_of(10, looping=3),
            {"max_looping_fraction": 0.2},
            r"3 of 10 answers end in a repetition loop \(e.g. l0/0, l1/0, l2/0\).*max_looping_fraction=0.2 allows 2",
        ),
    ],
)
def test_bounds_that_are_broken(report: GenerateReport, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftyardError, match=message):
        require_bounds(report, params(**changes))


def test_bounds_that_hold() -> None:
    require_bounds(report_of(18, prompt_too_long=1, empty_answer=1), params(max_skipped_fraction=0.1))
    require_bounds(report_of(10, looping=2), params(max_looping_fraction=0.2))
    require_bounds(report_of(10, later_turn_too_long=4), params())  # the conversation was answered, only shorter


def test_the_bound_is_on_prompts_and_not_on_answers() -> None:
    """Ten prompts of ten turns each make a hundred answers; one prompt more that is skipped is a tenth of the prompts, not a hundredth."""
    report = report_of(9, prompt_too_long=1)
    report.answers = 90
    with pytest.raises(DraftyardError, match="1 of 10 prompts gave no usable answer"):
        require_bounds(report, params(max_skipped_fraction=0.05))


# --- turns ----------------------------------------------------------------------------------------------------------


def test_answers_come_back_in_the_order_of_the_prompts() -> None:
    report = GenerateReport()
    made = answerer(lambda ids: [ids[2]])
    result = answered(made, [(prompt("a", "x"), 0), (prompt("b", "y"), 0), (prompt("a", "x"), 1)], report)
    assert [(g.id, g.sample) for g in result] == [("a", 0), ("b", 0), ("a", 1)]
    first = result[0]
    assert first.token_ids == [ord(c) for c in "u:x|a:x"] + [END]
    assert first.loss_spans == [(6, 8)]
    assert (first.turns[0].text, first.turns[0].finish_reason) == ("x", "stop")
    assert report.skipped == {}


def test_a_system_prompt_and_the_template_options_reach_the_template() -> None:
    made = answerer(made=params(chat_template_kwargs={"enable_thinking": False}))
    (result,) = answered(made, [(prompt("a", "x", system="s"), 0)], GenerateReport())
    assert result.turns[0].prompt_token_ids == [ord(c) for c in "s:s|u:x|a:"]
    assert made._tokenizer.kwargs == [{"enable_thinking": False}]


def test_a_conversation_is_asked_turn_by_turn_with_its_own_answers() -> None:
    result = answered(answerer(lambda ids: [ord("0") + ids.count(ord("|"))]), [(prompt("a", "x", "y", "z"), 0)], GenerateReport())[0]
    assert [t.text for t in result.turns] == ["1", "3", "5"]
    assert "".join(map(chr, result.turns[2].prompt_token_ids)) == "u:x|a:1|u:y|a:3|u:z|a:"
    # the template writes | after an answer, the engine END: earlier answers do not come back as they were written
    assert len(result.loss_spans) == 1
    report = GenerateReport()
    count([result], report)
    assert (report.conversations, report.answers, report.unmatched_turns) == (1, 3, 2)


def test_sampling_is_greedy_or_seeded_by_name() -> None:
    made = answerer(made=params(temperature=0.7, samples_per_prompt=2))
    answered(made, [(prompt("a", "x"), 0), (prompt("a", "x"), 1)], GenerateReport(), greedy=False)
    answered(made, [(prompt("b", "x"), 0)], GenerateReport(), greedy=True)
    ids = [ord(c) for c in "u:x|a:"]
    assert asked(made) == [
        Request(id="a/0/0", token_ids=ids, max_tokens=8, temperature=0.7, top_p=0.9, seed=sample_seed(7, "a", 0)),
        Request(id="a/1/0", token_ids=ids, max_tokens=8, temperature=0.7, top_p=0.9, seed=sample_seed(7, "a", 1)),
        Request(id="b/0/0", token_ids=ids, max_tokens=8, temperature=0.0, top_p=1.0, seed=None),
    ]


def test_a_prompt_that_does_not_fit_is_skipped_and_one_that_just_fits_is_not() -> None:
    report = GenerateReport()
    fits = 60 - 8 - len("u:|a:")
    result = answered(answerer(), [(prompt("a", "x" * fits), 0), (prompt("b", "x" * (fits + 1)), 0)], report)
    assert [g.id for g in result] == ["a"]
    assert report.skipped == {"prompt too long": ["b/0"]}


def test_a_later_turn_that_does_not_fit_ends_the_conversation_early() -> None:
    report = GenerateReport()
    (result,) = answered(answerer(), [(prompt("a", "x", "y" * 50, "z"), 3)], report)
    assert len(result.turns) == 1
    assert report.skipped == {LATER_TURN: ["a/3"]}


def test_an_empty_answer_is_no_answer() -> None:
    report = GenerateReport()
    result = answered(answerer(lambda ids: [] if ord("n") in ids else [32] if ord("b") in ids else [ord("y")]), [(prompt(c, c), 0) for c in "nby"], report)
    assert [g.id for g in result] == ["y"]
    assert sorted(report.skipped["empty answer"]) == ["b/0", "n/0"]


def test_a_request_that_the_engine_gives_up_is_counted_under_its_reason() -> None:
    report = GenerateReport()
    result = answered(answerer(), [(prompt("a", "x", "?"), 0), (prompt("b", "?"), 0), (prompt("c", "x"), 0)], report)
    assert [g.id for g in result] == ["c"]
    assert {reason: sorted(names) for reason, names in report.skipped.items()} == {"refused by the server": ["a/0", "b/0"]}


def test_an_answer_cut_by_its_length_says_so() -> None:
    (result,) = answered(answerer(lambda ids: [ord("y")] * 20), [(prompt("a", "x"), 0)], GenerateReport(), new=4)
    assert (result.turns[0].finish_reason, result.turns[0].output_token_ids) == ("length", [ord("y")] * 4)


def test_a_template_that_refuses_is_a_users_error() -> None:
    with pytest.raises(DraftyardError, match=r"chat template refuses a conversation \(system, user\) that asks 'x': System role not supported"):
        answered(answerer(), [(prompt("a", "x", system="forbidden"), 0)], GenerateReport())


def test_names_with_slashes_do_not_collide() -> None:
    made = answerer(lambda ids: [ids[2]])
    result = answered(made, [(prompt("a", "x", "y"), 0), (prompt("a/0", "z"), 1), (prompt("a", "w"), 1)], GenerateReport())
    assert [(g.id, g.sample, g.turns[0].text) for g in result] == [("a", 0, "x"), ("a/0", 1, "z"), ("a", 1, "w")]


# --- shards ---------------------------------------------------------------------------------------------------------


PROMPTS = [prompt(f"p{i}", f"{i}") if i != 3 else prompt("long", "x" * 60) for i in range(5)]


def split(directory: Path, made: Answerer, name: str = "train", shard: int = 2, prompts: list[Prompt] = PROMPTS) -> tuple[int, GenerateReport]:
    report = GenerateReport()
    plan = SplitPlan(split=name, num_prompts=len(prompts), samples_per_shard=shard, params=made._params)
    resumed = generate_split(made, plan, iter(prompts), directory, recovery=Recovery(5, 1, "generate.max_skipped_fraction=0.2"), report=report)
    return resumed, report


def test_shards_hold_every_prompt_and_the_report_every_count(tmp_path: Path) -> None:
    resumed, report = split(tmp_path, answerer(lambda ids: [ids[2]]))
    assert resumed == 0
    assert [path.name for path in sorted(tmp_path.glob("*.jsonl"))] == [f"train-0000{n}.jsonl" for n in range(3)]
    assert [g.id for g in read_split(tmp_path, "train")] == ["p0", "p1", "p2", "p4"]
    assert (report.conversations, report.answers, report.output_tokens, report.prompt_tokens) == (4, 4, 8, 24)
    assert report.finish_reasons == {"stop": 4}
    assert report.skipped == {"prompt too long": ["long/0"]}
    assert report.categories["chat"] == {"answers": 4, "output_tokens": 8, "looping": 0}
    canonical_json(report.to_json("float32"))


def test_a_resumed_split_answers_only_what_is_missing_and_reports_the_same(tmp_path: Path) -> None:
    _, plain = split(tmp_path / "plain", answerer(lambda ids: [ids[2]]))
    split(tmp_path / "killed", answerer(lambda ids: [ids[2]]))
    (tmp_path / "killed/train-00001.jsonl").unlink()  # killed between a shard and the one before it; or
    (tmp_path / "killed/skipped/train-00002.json").unlink()  # never told what it had skipped
    made = answerer(lambda ids: [ids[2]])
    resumed, report = split(tmp_path / "killed", made)
    assert resumed == 1
    assert sorted(request.id for request in asked(made)) == ["p2/0/0", "p4/0/0"]
    assert report.to_json("x") == plain.to_json("x")
    for path in sorted((tmp_path / "plain").glob("*.jsonl")):
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


def test_the_holdout_is_greedy_once_and_as_long_as_it_is_served(tmp_path: Path) -> None:
    made = answerer(made=params(temperature=0.7, samples_per_prompt=3))
    split(tmp_path, made, "holdout")
    assert [(r.temperature, r.max_tokens, r.seed) for r in asked(made)] == [(0.0, 6, None)] * 4
    sampled = answerer(made=made._params)
    split(tmp_path, sampled, "train")
    assert len({r.seed for r in asked(sampled)}) == len(asked(sampled)) == 12


def test_prompts_are_read_as_they_are_needed(tmp_path: Path) -> None:
    """When a shard is answered, nothing beyond it has been read."""
    read: list[str] = []

    def prompts() -> Iterator[Prompt]:
        for one in PROMPTS:
            read.append(one.id)
            yield one

    seen: list[int] = []
    made = answerer(lambda ids: seen.append(len(read)) or [ids[2]])  # type: ignore[func-returns-value]
    plan = SplitPlan(split="train", num_prompts=5, samples_per_shard=2, params=made._params)
    generate_split(made, plan, prompts(), tmp_path, recovery=Recovery(0, 0, "x"), report=GenerateReport())
    assert seen == [2, 2, 4, 5]


def test_a_prompt_that_kills_the_engine_is_left_out_named_and_counted(tmp_path: Path) -> None:
    """The rest of its shard is what a build without that prompt has, byte for byte."""
    deadly = [*PROMPTS[:1], prompt("deadly", "!"), *PROMPTS[1:]]
    _, report = split(tmp_path / "deadly", answerer(lambda ids: [ids[2]]), shard=3, prompts=deadly)
    assert report.skipped == {ENGINE_FAILED: ["deadly/0"], "prompt too long": ["long/0"]}
    assert [g.id for g in read_split(tmp_path / "deadly", "train")] == ["p0", "p1", "p2", "p4"]
    split(tmp_path / "plain", answerer(lambda ids: [ids[2]]), prompts=PROMPTS[:2])
    assert (tmp_path / "deadly/train-00000.jsonl").read_bytes() == (tmp_path / "plain/train-00000.jsonl").read_bytes()
    assert split(tmp_path / "deadly", answerer(), shard=3, prompts=deadly)[1].to_json("x") == report.to_json("x")
    with pytest.raises(DraftyardError, match=r"2 of 6 prompts gave no usable answer .*the engine fails on it: deadly/0"):
        require_bounds(report, params(max_skipped_fraction=0.2))


def test_looping_answers_are_counted_by_name() -> None:
    report = GenerateReport()
    made = answerer(lambda ids: [ord("y")] * 60, made=params(max_new_tokens=60, max_model_len=200))
    count(answered(made, [(prompt("a", "x"), 1)], report, new=60), report)
    assert (report.looping, report.categories["chat"]["looping"]) == (["a/1"], 1)
    assert report.to_json("x")["looping_fraction"] == 1.0
