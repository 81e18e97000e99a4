"""Answering prompts with the verifier, shard by shard, resumable."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import read_json, write_json
from draftyard.artifacts.generations import Generation, Turn, join_turns, read_shard, shard_name, write_shard
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.recovery import Recovery
from draftyard.engines.requests import Engine, Request
from draftyard.errors import DraftyardError
from draftyard.params.generate import GenerateParams
from draftyard.progress import Progress

SHOWN = 10
LATER_TURN = "later turn too long"
ENGINE_FAILED = "the engine fails on it"
LOOP_WINDOW_TOKENS = 48
LOOP_MAX_PERIOD_TOKENS = 16


@dataclass
class GenerateReport:
    """Counts over all shards. conversations have one answer or more each. skipped: reason -> ids."""

    conversations: int = 0
    answers: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    looping: list[str] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    unmatched_turns: int = 0
    categories: dict[str, Counter[str]] = field(default_factory=dict)

    def to_json(self, dtype: str) -> dict[str, Any]:
        """The stage's metrics."""
        return {
            "dtype": dtype,
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "looping": len(self.looping),
            "looping_fraction": len(self.looping) / self.answers if self.answers else 0.0,
            "looping_examples": self.looping[:SHOWN],
            "skipped": sum(len(names) for names in self.skipped.values()),
            "skipped_reasons": {reason: {"count": len(names), "examples": names[:SHOWN]} for reason, names in sorted(self.skipped.items())},
            "unmatched_turns": self.unmatched_turns,
            "categories": {name: dict(counts) for name, counts in sorted(self.categories.items())},
        }

    def skip(self, reason: str, name: str) -> None:
        """Count one prompt that gave no answer."""
        self.skipped.setdefault(reason, []).append(name)


def ends_in_loop(token_ids: list[int]) -> bool:
    """Whether the last LOOP_WINDOW_TOKENS tokens repeat with a period of at most LOOP_MAX_PERIOD_TOKENS."""
    tail = token_ids[-LOOP_WINDOW_TOKENS:]
    if len(tail) < LOOP_WINDOW_TOKENS:
        return False
    return any(all(tail[i] == tail[i - period] for i in range(period, len(tail))) for period in range(1, LOOP_MAX_PERIOD_TOKENS + 1))


def sample_seed(root: int, prompt_id: str, sample: int) -> int:
    """A 32-bit seed for one answer, independent of order and batching."""
    return int.from_bytes(hashlib.sha256(f"{root}/{prompt_id}/{sample}".encode()).digest()[:4], "big")


@dataclass
class _Conversation:
    prompt: Prompt
    sample: int
    messages: list[dict[str, str]]
    turns: list[Turn] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.prompt.id}/{self.sample}"


class Answerer:
    """Answers prompts through an engine with a tokenizer's chat template."""

    def __init__(self, engine: Engine, tokenizer: Any, params: GenerateParams) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._params = params

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of the conversation with the generation prompt; the template is applied here and nowhere else.

        Raises DraftyardError with the template's own words when it refuses the conversation (some know no system prompt).
        """
        from jinja2 import TemplateError

        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=False, **self._params.chat_template_kwargs
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise DraftyardError(
                f"the verifier's chat template refuses a conversation ({roles}) that asks {messages[-1]['content'][:60]!r}: {error}; "
                "change the prompts, or generate.chat_template_kwargs"
            ) from None
        return list(rendered)

    def answer_shard(
        self, prompts: list[tuple[Prompt, int]], *, greedy: bool, max_new_tokens: int, report: GenerateReport, on_answers: Callable[[int, int], None]
    ) -> list[Generation]:
        """Answer (prompt, sample number) pairs turn by turn. Returns the conversations in the order given, skipped ones left out and counted.

        Raises EngineFailure when the engine is lost: nothing of the shard is kept then.
        """
        active: dict[str, tuple[_Conversation, list[int]]] = {}  # request id -> conversation, ids of its prompt
        done: dict[str, _Conversation] = {}
        for prompt, number in prompts:
            messages = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
            conversation = _Conversation(prompt, number, messages)
            self._ask(conversation, active, greedy, max_new_tokens, report)
        tokens = 0

        def on_step(new: int) -> None:
            nonlocal tokens
            tokens += new
            on_answers(len(done), tokens)

        for finished in self._engine.finished(on_step):
            conversation, prompt_token_ids = active.pop(finished.id)
            if finished.failure is not None:
                report.skip(finished.failure, conversation.name)
                continue
            text = self._tokenizer.decode(finished.token_ids, skip_special_tokens=True)
            if not text.strip():
                report.skip("empty answer", conversation.name)
                continue
            conversation.turns.append(
                Turn(prompt_token_ids=prompt_token_ids, output_token_ids=finished.token_ids, text=text, finish_reason=finished.finish_reason)
            )
            conversation.messages.append({"role": "assistant", "content": text})
            if len(conversation.turns) < len(conversation.prompt.turns) and self._ask(conversation, active, greedy, max_new_tokens, report):
                continue  # the next turn is on its way
            done[conversation.name] = conversation
        return [self._finish(done[name]) for name in (f"{p.id}/{n}" for p, n in prompts) if name in done]

    def _ask(
        self, conversation: _Conversation, active: dict[str, tuple[_Conversation, list[int]]], greedy: bool, max_new_tokens: int, report: GenerateReport
    ) -> bool:
        """Queue the next turn. A first turn that does not fit is skipped; a later one ends the conversation early. Returns whether it was queued."""
        params = self._params
        number = len(conversation.turns)
        conversation.messages.append({"role": "user", "content": conversation.prompt.turns[number]})
        token_ids = self.render(conversation.messages)
        if len(token_ids) + max_new_tokens > params.max_model_len:
            report.skip("prompt too long" if number == 0 else LATER_TURN, conversation.name)
            return False
        request = Request(
            id=f"{conversation.name}/{number}",
            token_ids=token_ids,
            max_tokens=max_new_tokens,
            temperature=0.0 if greedy else params.temperature,
            top_p=1.0 if greedy else params.top_p,
            seed=None if greedy or params.temperature == 0 else sample_seed(params.seed, conversation.prompt.id, conversation.sample),
        )
        active[request.id] = conversation, token_ids
        self._engine.add(request)
        return True

    def _finish(self, conversation: _Conversation) -> Generation:
        token_ids, spans = join_turns(conversation.turns)
        return Generation(
            id=conversation.prompt.id,
            category=conversation.prompt.category,
            sample=conversation.sample,
            turns=conversation.turns,
            token_ids=token_ids,
            loss_spans=spans,
        )


def count(generations: list[Generation], report: GenerateReport) -> None:
    """Add a finished shard's conversations to the report."""
    for generation in generations:
        report.conversations += 1
        category = report.categories.setdefault(generation.category, Counter())
        for turn in generation.turns:
            report.answers += 1
            category.update(answers=1, output_tokens=len(turn.output_token_ids), looping=int(ends_in_loop(turn.output_token_ids)))
            report.output_tokens += len(turn.output_token_ids)
            report.finish_reasons[turn.finish_reason] += 1
            if ends_in_loop(turn.output_token_ids):
                report.looping.append(f"{generation.id}/{generation.sample}")
        report.prompt_tokens += generation.prompt_length
        report.unmatched_turns += len(generation.turns) - len(generation.loss_spans)


def require_bounds(report: GenerateReport, params: GenerateParams) -> None:
    """Raise DraftyardError when more was skipped, or more answers loop, than the params allow."""
    skipped = sum(len(names) for reason, names in report.skipped.items() if reason != LATER_TURN)
    asked = report.conversations + skipped
    if not report.answers:
        reasons = ", ".join(report.skipped) or "there were none"
        raise DraftyardError(f"the verifier answered none of {asked} prompts: {reasons}; look at reports/stages/generate.json")
    if skipped > params.max_skipped_fraction * asked:
        examples = "; ".join(f"{reason}: {', '.join(names[:3])}" for reason, names in sorted(report.skipped.items()))
        raise DraftyardError(
            f"{skipped} of {asked} prompts gave no usable answer ({examples}); "
            f"generate.max_skipped_fraction={params.max_skipped_fraction} allows {int(params.max_skipped_fraction * asked)}"
        )
    if len(report.looping) > params.max_looping_fraction * report.answers:
        raise DraftyardError(
            f"{len(report.looping)} of {report.answers} answers end in a repetition loop (e.g. {', '.join(report.looping[:3])}), "
            f"which would inflate every acceptance figure; generate.max_looping_fraction={params.max_looping_fraction} allows "
            f"{int(params.max_looping_fraction * report.answers)}: sample with a temperature, or shorten generate.max_new_tokens"
        )


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """How one split is answered. num_prompts: of the split, for the progress line. The holdout is greedy, once per prompt, as it is served."""

    split: str
    num_prompts: int
    samples_per_shard: int
    params: GenerateParams

    @property
    def greedy(self) -> bool:
        """Whether answers are the likeliest tokens, whatever the params say of sampling."""
        return self.split == "holdout"

    @property
    def samples(self) -> int:
        """Answers per prompt."""
        return 1 if self.greedy else self.params.samples_per_prompt

    @property
    def max_new_tokens(self) -> int:
        """Longest answer."""
        return self.params.holdout_max_new_tokens if self.greedy else self.params.max_new_tokens


def generate_split(answerer: Answerer, plan: SplitPlan, prompts: Iterable[Prompt], directory: Path, *, recovery: Recovery, report: GenerateReport) -> int:
    """Answer one split into shards below `directory`, going on after the shards already there. Returns how many were resumed.

    Prompts are read as they are needed: memory holds one shard. A shard is the unit of batching: its answers do not depend on
    what ran before it, so a resumed build ends with the same bytes. What a shard skipped stands beside it in skipped/.
    """
    progress = Progress(f"generate {plan.split}", plan.num_prompts * plan.samples, "prompts")
    resumed = start = 0
    for path, part in shard_parts(plan, prompts, directory):
        if is_made(path):
            generations, skipped = list(read_shard(path)), read_json(skipped_path(path))
            resumed += 1
        else:

            def on_answers(answered: int, tokens: int, base: int = start) -> None:
                progress.update(base + answered, f"{report.output_tokens + tokens} tokens")

            generations, skipped = answer_part(answerer, plan, part, recovery, on_answers)
            write_json(skipped_path(path), skipped)
            write_shard(path, generations)
        for reason, names in skipped.items():
            report.skipped.setdefault(reason, []).extend(names)
        count(generations, report)
        start += len(part)
        progress.update(start, f"{report.output_tokens} tokens")
    progress.close(f"{report.output_tokens} tokens")
    return resumed


def shard_parts(plan: SplitPlan, prompts: Iterable[Prompt], directory: Path) -> Iterator[tuple[Path, list[tuple[Prompt, int]]]]:
    """The shards of a split: where each lies below `directory`, and the (prompt, sample number) pairs that it answers."""
    pairs = ((prompt, number) for prompt in prompts for number in range(plan.samples))
    number = 0
    while part := list(islice(pairs, plan.samples_per_shard)):
        yield directory / shard_name(plan.split, number), part
        number += 1


def skipped_path(shard: Path) -> Path:
    """The file that says what `shard` skipped."""
    return shard.parent / "skipped" / f"{shard.stem}.json"


def is_made(shard: Path) -> bool:
    """Whether `shard` was written by an earlier run, or by a cluster."""
    return shard.exists() and skipped_path(shard).exists()


def answer_part(
    answerer: Answerer, plan: SplitPlan, part: list[tuple[Prompt, int]], recovery: Recovery, on_answers: Callable[[int, int], None]
) -> tuple[list[Generation], dict[str, list[str]]]:
    """The conversations of one shard and what it skipped, by reason; the engine may fail on the way."""

    def run(pairs: list[tuple[Prompt, int]]) -> tuple[list[Generation], dict[str, list[str]]]:
        report = GenerateReport()
        found = answerer.answer_shard(pairs, greedy=plan.greedy, max_new_tokens=plan.max_new_tokens, report=report, on_answers=on_answers)
        return found, report.skipped

    (generations, skipped), poisonous = recovery.run(part, run, lambda pair: f"{pair[0].id}/{pair[1]}")
    return generations, {**skipped, **({ENGINE_FAILED: poisonous} if poisonous else {})}
