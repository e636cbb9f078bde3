"""Training a small policy on the corpus, from nothing or from another: the recipe behind `roleagent pretrain`.

Matrices inside the layers are trained with Muon (orthogonalised momentum; `torch.optim.Muon`), embeddings and
norms with AdamW, both with a linear warm-up and a linear decay to zero over a fixed number of steps. A checkpoint
is written every few minutes, and the same command goes on from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent.errors import ConfigError
from roleagent.pretraining.corpus import CorpusSettings, Example, Play, demonstration_texts, examples, texts
from roleagent.pretraining.own_play import load, play, save

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from roleagent.policy.model import Policy


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training: what is learned, for how many steps, and how the learning rates go meanwhile."""

    corpus: CorpusSettings
    steps: int
    begin: float = 1.0  #: factor on the learning rates at the stage's first step; linear in between
    end: float = 1.0  #: factor that its last step approaches
    own_plays: int = 0  #: episodes that the policy plays at the stage's beginning, for `corpus.own_share`


@dataclass(frozen=True, slots=True)
class PretrainSettings:
    """The recipe."""

    stages: tuple[Stage, ...]
    seed: int = 0
    base: str = ""  #: policy to go on from, with its tokenizer, its sizes and its weights; empty: begin from nothing
    batch_tokens: int = 4096  #: tokens, padding included, of an optimizer step
    muon_learning_rate: float = 0.02
    adam_learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 100
    max_grad_norm: float = 1.0
    max_length: int = 1536  #: longer examples are left out
    vocabulary: int = 1024
    tokenizer_texts: int = 4000
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 512
    checkpoint_seconds: float = 60.0

    @property
    def steps(self) -> int:
        """Optimizer steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> tuple[Stage, int]:
        """Return the stage of a 0-based step and the step's number in it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        return self.stages[-1], self.stages[-1].steps


def learning_rate_factor(step: int, settings: PretrainSettings) -> float:
    """Return the factor on both learning rates at 0-based `step`: a warm-up, and a line in each stage."""
    stage, within = settings.stage(step)
    line = stage.begin + (stage.end - stage.begin) * within / max(1, stage.steps)
    return max(0.0, line * min(1.0, (step + 1) / max(1, settings.warmup_steps)))


def batches(
    take: Iterator[tuple[int, Example]], batch_tokens: int, window: int = 256
) -> Iterator[tuple[int, list[Example]]]:
    """Yield (next index, batch): a window of examples is sorted by length and cut into batches of similar lengths.

    The batches of a window are yielded in an order that does not depend on length, so that the loss is not
    periodic. `next index` is where a resumed run starts its stream again; it moves on when a window is done.
    """
    while True:
        indexed = [next(take) for _ in range(window)]
        after = indexed[-1][0] + 1
        group = sorted((item for _, item in indexed), key=lambda item: len(item.ids))
        cut: list[list[Example]] = [[]]
        for item in group:
            if cut[-1] and (len(cut[-1]) + 1) * len(item.ids) > batch_tokens:
                cut.append([])
            cut[-1].append(item)
        order = sorted(range(len(cut)), key=lambda k: (k * 7919) % 104729)
        for position, k in enumerate(order):
            yield (after if position == len(order) - 1 else -1), cut[k]


def build_optimizers(model: torch.nn.Module, settings: PretrainSettings) -> list[torch.optim.Optimizer]:
    """Return [Muon over the layers' matrices, AdamW over the rest]."""
    import torch

    matrices: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "layers." in name else rest).append(parameter)
    return [
        torch.optim.Muon(
            matrices,
            lr=settings.muon_learning_rate,
            weight_decay=settings.weight_decay,
            adjust_lr_fn="original",
        ),
        torch.optim.AdamW(rest, lr=settings.adam_learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def batch_loss(model: torch.nn.Module, batch: list[Example]) -> torch.Tensor:
    """Return the weighted mean cross-entropy of next tokens; head and softmax on weighted positions only."""
    import torch

    length = max(len(item.ids) for item in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        weights[row, : len(item.ids)] = torch.tensor(item.weights)
    # Right padding under causal attention: no padded position is seen by a real one, so no mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]  # type: ignore[operator]
    targets, weights = ids[:, 1:], weights[:, 1:]
    chosen = weights > 0
    logits = model.lm_head(hidden[chosen])  # type: ignore[operator]
    losses = torch.nn.functional.cross_entropy(logits, targets[chosen], reduction="none")
    return (losses * weights[chosen]).sum() / weights[chosen].sum()


def pretrain(
    settings: PretrainSettings,
    folder: Path,
    report: Callable[[dict[str, float]], None],
    limit: int | None = None,
) -> Policy:
    """Train a policy, or go on from `folder`'s checkpoint; return it. Its weights are saved in `folder/policy`.

    Args:
        settings: the recipe; a checkpoint made with another one is refused.
        folder: where the checkpoint, the log and the finished policy go.
        report: called every 20 steps with step, loss, tokens, seconds.
        limit: stop after this many optimizer steps in all; the same command without it goes on.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    policy = _begin(folder, settings)
    model = policy.model
    model.train()
    optimizers = build_optimizers(model, settings)
    step, index, tokens = _load(folder, settings, model, optimizers)
    stage, _ = settings.stage(step)
    stream = _stream(index, policy, stage, settings, _plays(folder, policy, stage, settings, step, report))
    began = saved = time.monotonic()
    losses: list[float] = []
    resumable = index
    last = settings.steps if limit is None else min(limit, settings.steps)
    while step < last:
        if settings.stage(step)[0] is not stage:
            stage, _ = settings.stage(step)
            if stage.own_plays:  # what they are follows from these weights: a resumed run finds both
                _save(folder, settings, policy, optimizers, step, resumable, tokens)
            stream = _stream(resumable, policy, stage, settings, _plays(folder, policy, stage, settings, step, report))
        after, batch = next(stream)
        factor = learning_rate_factor(step, settings)
        for optimizer, rate in zip(optimizers, (settings.muon_learning_rate, settings.adam_learning_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        loss = batch_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        tokens += sum(len(item.ids) for item in batch)
        losses.append(float(loss.detach()))
        if after >= 0:
            resumable = after
        if step % 20 == 0 or step == last:
            report(
                {
                    "step": step,
                    "loss": sum(losses) / len(losses),
                    "tokens": tokens,
                    "seconds": time.monotonic() - began,
                }
            )
            losses.clear()
        if time.monotonic() - saved > settings.checkpoint_seconds or step == last:
            _save(folder, settings, policy, optimizers, step, resumable, tokens)
            saved = time.monotonic()
    model.train(False)
    return policy


def _begin(folder: Path, settings: PretrainSettings) -> Policy:
    """Return the policy before its first step; contexts are as long as the examples may be."""
    from roleagent.policy.model import Policy, load_policy
    from roleagent.policy.small import build_small_model
    from roleagent.policy.tokens import PolicyTokenizer

    if settings.base:
        base = load_policy(settings.base, device="cpu")
        base.model.config.max_position_embeddings = settings.max_length
        return Policy(base.model, base.tokenizer, str(folder), settings.max_length)
    tokenizer = _tokenizer(folder, settings)
    small = build_small_model(
        len(tokenizer),
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        kv_heads=settings.kv_heads,
        intermediate=settings.intermediate,
        max_context=settings.max_length,
        seed=settings.seed,
    )
    return Policy(small, PolicyTokenizer(tokenizer), str(folder), settings.max_length)


def _tokenizer(folder: Path, settings: PretrainSettings) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the checkpoint, or train one: a resumed run must read the ids that it was trained on."""
    from transformers import PreTrainedTokenizerFast

    from roleagent.policy.small import build_small_tokenizer

    if (folder / "policy" / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder / "policy")  # type: ignore[no-any-return]
    words = texts(settings.stages[0].corpus, settings.seed, settings.tokenizer_texts, demonstration_texts)
    return build_small_tokenizer(words, settings.vocabulary)


def _stream(
    index: int, policy: Policy, stage: Stage, settings: PretrainSettings, plays: Sequence[Play]
) -> Iterator[tuple[int, list[Example]]]:
    take = examples(index, policy.tokenizer, stage.corpus, settings.seed, settings.max_length, plays)
    return batches(take, settings.batch_tokens)


def _plays(
    folder: Path,
    policy: Policy,
    stage: Stage,
    settings: PretrainSettings,
    step: int,
    report: Callable[[dict[str, float]], None],
) -> list[Play]:
    """Return the policy's own plays of a stage: those in the folder, or new ones at the stage's first step."""
    if not stage.own_plays:
        return []
    number = settings.stages.index(stage)
    path = folder / f"own-plays-{number}.jsonl"
    if not path.is_file():
        if settings.stage(step)[1]:
            raise ConfigError(f"{path} is missing, which the checkpoint was trained on; give another --output")
        policy.model.train(False)
        began = time.monotonic()

        def told(done: int, count: int) -> None:
            if done % 100 == 0 or done == count:
                report({"step": step, "plays": done, "of": count, "seconds": time.monotonic() - began})

        save(path, play(policy, stage.corpus, settings.seed, number, stage.own_plays, told))
        policy.model.train()
    return load(path)


def _tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    import torch

    found: dict[str, torch.Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, entries in optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                found[f"{number}.{parameter}.{key}"] = torch.as_tensor(value).clone().contiguous()
    return found


def _save(
    folder: Path,
    settings: PretrainSettings,
    policy: Policy,
    optimizers: list[torch.optim.Optimizer],
    step: int,
    index: int,
    tokens: int,
) -> None:
    from safetensors.torch import save_file

    from roleagent.policy.model import save_policy

    save_policy(policy, folder / "policy")
    save_file(_tensors(optimizers), folder / "optimizer.new")
    (folder / "optimizer.new").replace(folder / "optimizer.safetensors")
    state = {"step": step, "index": index, "tokens": tokens, "settings": asdict(settings)}
    (folder / "state.new").write_text(json.dumps(state, indent=1))
    (folder / "state.new").replace(folder / "state.json")


def _load(
    folder: Path,
    settings: PretrainSettings,
    model: Any,
    optimizers: list[torch.optim.Optimizer],
) -> tuple[int, int, int]:
    from safetensors.torch import load_file

    path = folder / "state.json"
    if not path.is_file():
        return 0, 0, 0
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        made_with = state["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged; remove {folder}, or give another --output") from error
    if made_with != json.loads(json.dumps(asdict(settings))):
        raise ConfigError(f"{folder} holds a checkpoint of another recipe; give another --output, or remove it")
    model.load_state_dict(load_file(folder / "policy" / "model.safetensors"), strict=False)
    tensors = load_file(folder / "optimizer.safetensors")
    for number, optimizer in enumerate(optimizers):
        wanted = optimizer.state_dict()
        entries: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            owner, parameter, key = name.split(".", 2)
            if int(owner) == number:
                entries.setdefault(int(parameter), {})[key] = tensor
        wanted["state"] = entries
        optimizer.load_state_dict(wanted)
    return int(state["step"]), int(state["index"]), int(state["tokens"])
