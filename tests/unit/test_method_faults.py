"""The known faults of public code (the method, section 6): each has a test, here or where the part is.

`INDEX` names them; a test below sees to it that every named test exists. Three faults are tested here: ids that are
made again from text (4), log-probs of another distribution than the sampled one (6), and an action grammar from memory
(14).
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.household.household import Household
from roleagent.learning.packing import to_sequences
from roleagent.policy.sampling import sample
from roleagent.policy.small import build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.rollout.loop import collect
from roleagent.rollout.records import read_trajectories, write_trajectories
from roleagent.rollout.settings import RolloutSettings
from tests.support.doors import Doors
from tests.support.scripted import ScriptedEngine

TESTS = Path(__file__).resolve().parents[1]

INDEX: dict[int, tuple[str, ...]] = {
    1: (  # re-weighting that changes nothing that is played
        "unit/agent_in_world/test_curriculum.py::test_fault_1_reweighting_changes_what_is_played",
        "integration/test_agent_in_world.py::test_failures_reshape_what_is_played",
    ),
    2: (  # a prediction factor on a reward that is zero everywhere but in the winning step
        "unit/world_in_agent/test_prediction_rewards.py::test_every_step_of_a_winner_is_modulated_not_only_the_last",
    ),
    3: (  # weights that only grow and are lost on resume
        "unit/agent_in_world/test_curriculum.py::test_fault_3_weights_do_not_only_grow",
        "unit/agent_in_world/test_curriculum.py::test_fault_3_the_state_survives_a_resume_exactly",
        "integration/test_resume.py::test_killed_and_resumed_equals_uninterrupted",
    ),
    4: (  # a conversation that is tokenised again each turn
        "unit/test_method_faults.py::test_fault_4_ids_are_those_that_were_sampled",
        "unit/rollout/test_rollout_prompts.py::test_the_engine_holds_exactly_the_recorded_ids",
        "integration/test_rollouts.py::test_records_equal_a_full_forward",
    ),
    5: (  # environment tokens in the loss
        "unit/learning/test_packing.py::test_environment_tokens_never_carry_weight_or_logprob",
    ),
    6: (  # truncated sampling with untruncated log-probs
        "unit/test_method_faults.py::test_fault_6_the_mean_ratio_is_one_and_the_tail_is_sampled",
        "integration/test_learner.py::test_sampling_at_another_temperature_shows_as_mismatch",
        "integration/test_learner.py::test_on_policy_data_has_ratio_one_and_no_mismatch",
    ),
    7: (  # dead groups found by std == 0
        "unit/learning/test_advantages.py::test_equal_rewards_give_exactly_zero_although_their_std_is_not_zero",
    ),
    8: ("unit/world_in_agent/test_matching.py::test_gestalt_has_no_autojunk",),  # difflib's autojunk
    9: (  # one stuck environment, or a service without a time-out, stops the run
        "unit/rollout/test_rollout_faults.py::test_a_stuck_environment_ends_its_episode_and_not_the_run",
        "unit/rollout/test_environment_pool.py::test_every_thread_stuck",
        "integration/test_faults.py::test_stuck_and_raising_environments_end_their_episodes_only",
        "integration/test_s3.py::test_lost_server_and_restart",
    ),
    10: ("integration/test_learner.py::test_the_head_sees_generated_positions_only",),  # logits of prompt tokens
    11: (  # optimizer or sampler state lost on resume
        "integration/test_learner_resume.py::test_resumed_equals_continuous_bit_for_bit",
        "integration/test_learner_resume.py::test_without_the_optimizer_state_the_result_differs",
        "integration/test_resume.py::test_killed_and_resumed_equals_uninterrupted",
    ),
    12: (  # control tokens in observations
        "unit/policy/test_tokens.py::test_control_text_from_an_environment_stays_text",
        "unit/rollout/test_rollout_faults.py::test_control_tokens_in_an_observation_stay_text",
        "integration/test_faults.py::test_hostile_text_is_kept_and_shown_and_never_obeyed",
    ),
    13: ("unit/test_architecture.py::test_every_configuration_key_is_read",),  # keys that nothing reads
    14: (  # an action grammar from memory
        "unit/test_method_faults.py::test_fault_14_the_action_grammar_comes_from_the_game",
    ),
}


def test_every_fault_has_tests_that_exist() -> None:
    assert sorted(INDEX) == list(range(1, 15))
    for names in INDEX.values():
        for name in names:
            path, _, function = name.partition("::")
            tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_fault_4_ids_are_those_that_were_sampled() -> None:
    """The model spells an action byte by byte. Its text, tokenised again, would give other and fewer ids."""
    text = "<action>green</action><predict>You are in the green room.</predict>"
    tokenizer = PolicyTokenizer(build_small_tokenizer([text, "You are in a hall."] * 20, 400))
    spelled = [token for char in text for token in tokenizer.encode_text(char)]
    usual = tokenizer.encode_text(text)
    assert tokenizer.decode(spelled) == tokenizer.decode(usual) == text
    assert len(spelled) > 2 * len(usual)

    (episode,) = collect(
        ScriptedEngine(tokenizer, lambda _: spelled, 1024),
        tokenizer,
        Doors,
        [(Doors().tasks("train")[0], 0)],
        RolloutSettings(horizon=1, max_steps=2, max_turn_tokens=len(spelled), max_context=1024, instructions=False),
        iteration=1,
        policy_version=0,
        seed=0,
        purpose="rollout",
    )
    (stored,) = read_trajectories(write_trajectories([episode]))
    (sequence,) = to_sequences([stored], {stored.trajectory_id: np.ones(2)})
    assert [step.action for step in stored.steps] == ["green", "green"]
    assert [list(step.generated_ids) for step in stored.steps] == [spelled, spelled]
    trained = [token for token, mask in zip(sequence.ids, sequence.mask, strict=True) if mask]
    assert trained == spelled * 2


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_fault_6_the_mean_ratio_is_one_and_the_tail_is_sampled(temperature: float) -> None:
    """With top-p 0.8 and log-probs of the whole distribution the mean ratio p_trainer / p_sampler would be below 1.

    Ours: every recorded log-prob is that of the distribution which was sampled, and what lies outside of the 0.8
    nucleus is drawn as often as it should be.
    """
    draws, vocabulary = 20_000, 200
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(3)) * 2
    ids, recorded = sample(logits.expand(draws, -1), temperature, np.random.default_rng(5).random(draws))
    trainer = torch.log_softmax(logits[0] / temperature, dim=-1)
    ratio = (trainer[ids] - recorded).exp()
    assert ratio.min() == pytest.approx(1.0, abs=1e-4)
    assert ratio.max() == pytest.approx(1.0, abs=1e-4)

    probabilities, order = trainer.exp().sort(descending=True)
    nucleus = set(order[: int((probabilities.cumsum(0) < 0.8).sum()) + 1].tolist())
    tail_mass = 1.0 - float(trainer.exp()[list(nucleus)].sum())
    tail_share = sum(token not in nucleus for token in ids.tolist()) / draws
    assert tail_mass > 0.1
    assert tail_share == pytest.approx(tail_mass, abs=0.015)


@pytest.mark.parametrize("level", ["small", "medium"])
def test_fault_14_the_action_grammar_comes_from_the_game(level: str) -> None:
    """ALFWorld's `put x in/on y` became `move x to y` in December 2024.

    Whatever the expert does is a command that the game lists at that moment, the guide that a model is shown has the
    game's own verbs, and the old grammar is not understood, where the new one would be.
    """
    verbs: set[str] = set()
    environment = Household(level=level)
    for index, task in enumerate(environment.tasks("train")[:24]):
        _, seen = environment.reset(task.task_id)
        for step in demonstrate(task.task_id, seed=index, max_steps=80).steps:
            assert step.action in seen.admissible, f"the expert said '{step.action}'"
            verbs.add(step.action.split()[0])
            if step.action.startswith("move "):
                thing, _, place = step.action.removeprefix("move ").partition(" to ")
                for joint in ("in/on", "in", "on", "to"):
                    assert not environment.step(f"put {thing} {joint} {place}").valid
            outcome = environment.step(step.action)
            assert outcome.valid
            seen = outcome.observation
        assert outcome.success
    assert "move" in verbs
    assert all(f"{verb} " in Household.guide for verb in verbs)
    assert "put " not in Household.guide
