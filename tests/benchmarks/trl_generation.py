"""Generation beside TRL's, in whole episodes: the same policy, games, limits and temperature.

TRL's side is a `rollout_func` of GRPOTrainer, called by the trainer's own `_generate`. It generates with transformers'
`generate`, as TRL does on a CPU, for all episodes of the step that still play; a turn ends with its last closing tag,
which is an end token there. Two ways are measured, and the faster one counts:

- `again`: each turn reads the whole conversation again, as in TRL's own loop for tools; the cache lives within a turn.
- `kept`: the cache lives across turns, as transformers' page on caches shows for a chat: the next call gets it with the
  mask of all that came before. A batch is ragged, so masked columns stay where a shorter turn ended, and the rows of
  finished episodes are taken out of it.

It returns no log-probabilities, which ours records: that is time saved on its side. One thread, CPU seconds, all ways
in turn in one process. Sampled tokens differ, so rates are compared, in tokens a second.

`make bench` plays at most 10 turns; `python -m tests.benchmarks.trl_generation 20` plays the preset's whole episodes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

from roleagent.policy.turns import parse_turn
from roleagent.rollout.context import MALFORMED_REPLY, first_user_text
from tests.benchmarks.generation_case import EPISODES_A_TASK, Case, Played
from tests.benchmarks.timing import spent

ROUNDS, TURNS = 5, 10


class Episode:
    """One conversation on TRL's side."""

    def __init__(self, case: Case, task_id: str) -> None:
        self.case = case
        self.environment = case.environment()
        goal, seen = self.environment.reset(task_id)
        self.prompt = case.policy.tokenizer.opening(None, first_user_text(goal, seen.text))
        self.new = list(self.prompt)  # read before the next turn
        self.ids = list(self.prompt)
        self.mask: list[int] = []  # of what comes after the prompt: 1 where the model wrote it
        self.turns = self.malformed = 0
        self.playing, self.success = True, False

    def take(self, turn: list[int]) -> None:
        """Act on a turn of the model."""
        tokenizer, settings = self.case.policy.tokenizer, self.case.settings
        ended = turn[-1] in tokenizer.stop_ids
        parsed = parse_turn(tokenizer.decode(turn[:-1] if ended else turn), settings.horizon)
        self.turns += 1
        reply, done = MALFORMED_REPLY, False
        self.malformed = self.malformed + 1 if parsed.malformed else 0
        if not parsed.malformed:
            outcome = self.environment.step(parsed.action)
            reply, done, self.success = outcome.observation.text, outcome.done, outcome.success
        self.ids += turn
        self.mask += [1] * len(turn)
        self.new = tokenizer.next_user(reply, ended)
        full = len(self.ids) + len(self.new) + settings.max_turn_tokens > settings.max_context
        if done or full or self.turns == settings.max_steps or self.malformed == settings.max_malformed:
            self.playing = False
            return
        self.ids += self.new
        self.mask += [0] * len(self.new)


class Rollout:
    """A `rollout_func`: prompts are task ids; `keep` says whether the cache lives across turns."""

    def __init__(self, case: Case, keep: bool, *, sampled: bool = True) -> None:
        self.case, self.keep = case, keep
        tokenizer, settings = case.policy.tokenizer, case.settings
        # The tag is one token, and a turn of one prediction ends with it.
        (closing,) = tokenizer.encode_text("</predict>" if settings.horizon else "</action>")
        if settings.horizon > 1:
            raise ValueError("the end of a turn of several predictions is no token")
        self.stops = {closing, *tokenizer.stop_ids}
        self.generation = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=settings.max_turn_tokens,
            do_sample=sampled,
            **({"temperature": settings.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}),
            eos_token_id=sorted(self.stops),
            pad_token_id=tokenizer.pad_id,
        )
        self.played: list[Episode] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Play an episode for each prompt, all side by side."""
        self.played = [Episode(self.case, prompt) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        training = model.training
        model.eval()
        with torch.no_grad():
            (self._kept if self.keep else self._again)(model)
        model.train(training)
        return {
            "prompt_ids": [episode.prompt for episode in self.played],
            "completion_ids": [episode.ids[len(episode.prompt) :] for episode in self.played],
            "logprobs": None,
            "env_mask": [episode.mask for episode in self.played],
            "success": [float(episode.success) for episode in self.played],
        }

    def _again(self, model: Any) -> None:
        while live := [episode for episode in self.played if episode.playing]:
            ids, mask = self._padded([episode.ids for episode in live])
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=self.generation)
            self._act(live, out[:, ids.shape[1] :])

    def _kept(self, model: Any) -> None:
        live = list(self.played)
        cache = DynamicCache(config=model.config)
        ids = mask = torch.zeros((len(live), 0), dtype=torch.long)
        while live:
            more, real = self._padded([episode.new for episode in live])
            ids, mask = torch.cat([ids, more], 1), torch.cat([mask, real], 1)
            width = ids.shape[1]
            ids = model.generate(input_ids=ids, attention_mask=mask, cache=cache, generation_config=self.generation)
            lengths = self._act(live, ids[:, width:])
            wrote = torch.arange(ids.shape[1] - width) < torch.tensor(lengths).unsqueeze(1)
            mask = torch.cat([mask, wrote.long()], 1)
            if not all(episode.playing for episode in live):
                rows = torch.tensor([row for row, episode in enumerate(live) if episode.playing], dtype=torch.long)
                live = [episode for episode in live if episode.playing]
                ids, mask = ids[rows], mask[rows]
                if live:
                    cache.batch_select_indices(rows)

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids and mask, padded on the left."""
        width = max(map(len, rows))
        pad = self.case.policy.tokenizer.pad_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])

    def _act(self, live: list[Episode], written: Tensor) -> list[int]:
        """Hand each episode its turn; return their lengths."""
        lengths = []
        for episode, row in zip(live, written.tolist(), strict=True):
            end = next((place + 1 for place, token in enumerate(row) if token in self.stops), len(row))
            episode.take(row[:end])
            lengths.append(end)
        return lengths

    def count(self) -> Played:
        """Return what the last call played."""
        return Played(
            sum(sum(episode.mask) for episode in self.played),
            sum(episode.turns for episode in self.played),
            sum(episode.success for episode in self.played),
        )


def trainer(case: Case, rollout: Rollout) -> Any:
    """A GRPOTrainer on the case's policy whose step has all episodes."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    size = len(case.pairs)
    return GRPOTrainer(
        model=case.policy.model,
        reward_funcs=lambda completions, success, **_: success,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=size,
            num_generations=EPISODES_A_TASK,
            temperature=case.settings.temperature,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": [task.task_id for task in case.tasks]}),
        processing_class=case.policy.tokenizer.hf,
        rollout_func=rollout,
    )


def theirs(case: Case, keep: bool) -> Callable[[int], Played]:
    """Return a function that plays all episodes on TRL's side; its argument seeds the sampling."""
    rollout = Rollout(case, keep)
    made = trainer(case, rollout)
    prompts = [task.task_id for task, _ in case.pairs]

    def play(seed: int) -> Played:
        torch.manual_seed(seed)
        made._generate(list(prompts))
        return rollout.count()

    return play


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Play all three ways in turn; return medians."""
    ways: dict[str, Callable[[int], Played]] = {
        "ours": case.ours,
        "again": theirs(case, keep=False),
        "kept": theirs(case, keep=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    turns: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            played: list[Played] = []
            seconds = spent(lambda name=name, turn=turn, played=played: played.append(ways[name](turn))).cpu  # type: ignore[misc]
            speeds[name].append(played[0].tokens / seconds)
            turns[name].append(played[0].turns / len(case.pairs))
    best = max(("again", "kept"), key=lambda name: statistics.median(speeds[name]))
    return {
        "trl_generation_ratio": statistics.median(
            here / there for here, there in zip(speeds["ours"], speeds[best], strict=True)
        ),
        "generation_beside_trl_tokens_per_cpu_second": statistics.median(speeds["ours"]),
        "trl_generation_again_tokens_per_cpu_second": statistics.median(speeds["again"]),
        "trl_generation_kept_tokens_per_cpu_second": statistics.median(speeds["kept"]),
        "generation_beside_trl_turns": statistics.median(turns["ours"]),
        "trl_generation_turns": statistics.median(turns[best]),
    }


def numbers() -> dict[str, float]:
    """For `make bench`: tokens a CPU second of whole rollouts, ours and TRL's two ways, and the ratio to the faster."""
    torch.set_num_threads(1)
    return measure(Case(max_steps=TURNS), ROUNDS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    sys.stdout.write(json.dumps(measure(Case(max_steps=wanted), ROUNDS), indent=1) + "\n")
