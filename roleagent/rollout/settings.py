"""What the rollout loop needs to know, taken out of the run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from roleagent.config.models import TrainConfig

ContextTemplate = Literal["history", "step", "step_actions"]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of one call of :func:`roleagent.rollout.loop.collect`. Lengths are in tokens, times in seconds."""

    horizon: int  #: H, predicted states a turn; 0: none are asked for, and a turn ends with its action
    max_steps: int  #: T, turns of an episode, malformed ones included
    max_turn_tokens: int  #: tokens that the model may generate in one turn
    max_context: int  #: longest sequence of an episode
    temperature: float = 1.0  #: of the softmax that is sampled and whose log-probs are recorded; 0: greedy
    max_malformed: int = 3  #: malformed turns in a row that end an episode
    context: ContextTemplate = "history"
    window: int = 2  #: earlier turns that a step-independent prompt shows
    instructions: bool = True  #: tell the model the turn format and the environment's grammar
    concurrency: int = 128  #: episodes decoded side by side
    step_timeout_seconds: float = 30.0  #: an environment call that takes longer ends its episode
    environment_workers: int = 8  #: environment calls that run at the same time
    refill_share: float = 0.25  #: waiting share of the batch at which its next observations are prefilled together
    draft_tokens: int = 24  #: most guesses at next tokens that a pass verifies (see `drafting`); 0: none
    share: bool = True  #: episodes whose sequences are the same so far are one sequence of the engine
    straggler_seconds: float = 1.0  #: an environment call older than this is not waited for while others can decode

    def __post_init__(self) -> None:
        """Reject values with which the loop could not end or could not start."""
        positive = {
            "max_steps": self.max_steps,
            "max_turn_tokens": self.max_turn_tokens,
            "max_malformed": self.max_malformed,
            "concurrency": self.concurrency,
            "environment_workers": self.environment_workers,
            "step_timeout_seconds": self.step_timeout_seconds,
        }
        for name, value in positive.items():
            if value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if self.horizon < 0 or self.window < 0 or self.temperature < 0:
            raise ValueError("horizon, window and temperature must not be negative")
        if self.max_context <= self.max_turn_tokens:
            raise ValueError("max_context must be larger than max_turn_tokens")
        if not 0 <= self.draft_tokens <= 127:
            raise ValueError(f"draft_tokens must lie in 0..127, not {self.draft_tokens}")
        if not 0 < self.refill_share <= 1:
            raise ValueError(f"refill_share must lie in (0, 1], not {self.refill_share}")


def settings_from_config(
    config: TrainConfig, *, temperature: float | None = None, max_context: int | None = None
) -> RolloutSettings:
    """Build the settings of a run.

    `temperature` overrides the sampling temperature (evaluation samples at its own). `max_context` is the longest
    sequence that the loaded model can take; the smaller of it and the configured one counts.
    """
    limit = config.policy.max_context if max_context is None else min(config.policy.max_context, max_context)
    return RolloutSettings(
        horizon=config.horizon,
        max_steps=config.environment.max_steps,
        max_turn_tokens=config.rollout.max_turn_tokens,
        max_context=limit,
        temperature=config.rollout.temperature if temperature is None else temperature,
        max_malformed=config.rollout.max_malformed,
        context=config.rollout.context,
        window=config.rollout.window,
        instructions=config.policy.instructions,
        concurrency=config.rollout.concurrency,
        step_timeout_seconds=config.environment.step_timeout_seconds,
        environment_workers=config.environment.workers,
    )
