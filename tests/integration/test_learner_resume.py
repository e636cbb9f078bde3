import json

import pytest
import torch
from learner_case import random_sequences, tiny_model, with_values

from roleagent.config.models import LearnerConfig
from roleagent.errors import StorageError
from roleagent.learning.checkpoint import write_value_head
from roleagent.learning.learner import Learner, load_weights

CONFIG = LearnerConfig(learning_rate=1e-3, weight_decay=0.01, minibatches=2, micro_batch_tokens=128)


def learner(seed: int = 0, tied: bool = True) -> Learner:
    return Learner(tiny_model(seed, tied=tied), tiny_model(9, tied=tied), CONFIG, seed=1)


def train(trained: Learner, iterations: range) -> list[dict[str, float]]:
    return [
        trained.update(random_sequences(6, iteration), temperature=1.0, iteration=iteration) for iteration in iterations
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_resumed_equals_continuous_bit_for_bit(tmp_path, tied):
    continuous = learner(tied=tied)
    expected = train(continuous, range(4))
    first = learner(tied=tied)
    train(first, range(2))
    first.save(tmp_path)
    # Other initial weights: everything must come from the folder.
    second = learner(seed=5, tied=tied)
    second.load(tmp_path)
    found = train(second, range(2, 4))
    for name, parameter in continuous.model.named_parameters():
        assert torch.equal(parameter, second.model.get_parameter(name)), name
    for before, after in zip(expected[2:], found, strict=True):
        timing = ("update/seconds", "update/tokens_per_second")
        assert {key: before[key] for key in before if key not in timing} == {
            key: after[key] for key in after if key not in timing
        }
    assert (second.updates, second.optimizer_steps) == (4, 8)


def test_without_the_optimizer_state_the_result_differs(tmp_path):
    """The state matters: the test above could not pass by luck."""
    continuous, fresh = learner(), learner(seed=5)
    train(continuous, range(2))
    continuous.save(tmp_path)
    load_weights(fresh.model, tmp_path)
    train(continuous, range(2, 3))
    train(fresh, range(2, 3))
    assert not torch.equal(continuous.model.lm_head.weight, fresh.model.lm_head.weight)


def test_loading_goes_back(tmp_path):
    trained = learner()
    train(trained, range(1))
    trained.save(tmp_path)
    saved = trained.model.lm_head.weight.detach().clone()
    train(trained, range(1, 3))
    assert not torch.equal(saved, trained.model.lm_head.weight)
    trained.load(tmp_path)
    assert torch.equal(saved, trained.model.lm_head.weight)
    assert trained.updates == 1


def test_nothing_is_pickled(tmp_path):
    trained = learner()
    train(trained, range(1))
    trained.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "learner.json"])
@pytest.mark.parametrize("damage", ["missing", "half", "empty", "tail"])
def test_damaged_files_are_named(tmp_path, name, damage):
    trained = learner()
    train(trained, range(1))
    trained.save(tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"half": data[: len(data) // 2], "empty": b"", "tail": data[:-3]}[damage])
    other = learner(seed=5)
    before = {name: parameter.detach().clone() for name, parameter in other.model.named_parameters()}
    with pytest.raises(StorageError, match=path.name) as caught:
        other.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[key], parameter) for key, parameter in other.model.named_parameters())
    assert other.updates == 0


def test_another_models_checkpoint_is_refused(tmp_path):
    trained = learner(tied=True)
    train(trained, range(1))
    trained.save(tmp_path)
    with pytest.raises(StorageError, match=r"lm_head\.weight"):
        learner(tied=False).load(tmp_path)


def test_other_format_is_refused(tmp_path):
    trained = learner()
    trained.save(tmp_path)
    for record, words in (({"format": "other"}, "format"), ({"format": "roleagent-learner-1"}, "counters")):
        (tmp_path / "learner.json").write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(StorageError, match=words):
            learner().load(tmp_path)


# --- with a value head -----------------------------------------------------------------------------------------------

VALUES = LearnerConfig(
    learning_rate=1e-3, kl_coefficient=0.0, minibatches=2, value_coefficient=0.5, value_learning_rate=1e-2
)


def valued(seed: int = 0) -> Learner:
    return Learner(tiny_model(seed), None, VALUES, seed=1)


def train_values(trained: Learner, iterations: range) -> None:
    for iteration in iterations:
        trained.update(with_values(random_sequences(6, iteration), iteration), temperature=1.0, iteration=iteration)


def test_a_value_head_is_resumed_bit_for_bit(tmp_path):
    continuous, first, second = valued(), valued(), valued(seed=5)
    train_values(continuous, range(4))
    train_values(first, range(2))
    first.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    second.load(tmp_path)
    probe = with_values(random_sequences(5, 9))
    for before, after in zip(first.values(probe), second.values(probe), strict=True):
        assert before.any()
        assert (before == after).all()
    train_values(second, range(2, 4))
    for before, after in zip(continuous.values(probe), second.values(probe), strict=True):
        assert (before == after).all()
    for name, parameter in continuous.model.named_parameters():
        assert torch.equal(parameter, second.model.get_parameter(name)), name


@pytest.mark.parametrize("damage", ["missing", "half", "shape"])
def test_a_damaged_value_head_is_named(tmp_path, damage):
    trained = valued()
    train_values(trained, range(1))
    trained.save(tmp_path)
    path = tmp_path / "value_head.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage == "half":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "shape":
        write_value_head({"value_head.weight": torch.zeros(1, 3), "value_head.bias": torch.zeros(1)}, tmp_path)
    other = valued(seed=5)
    before = other.model.lm_head.weight.detach().clone()
    with pytest.raises(StorageError, match=r"value_head"):
        other.load(tmp_path)
    assert torch.equal(before, other.model.lm_head.weight)


def test_a_checkpoint_with_a_value_head_needs_a_learner_with_one(tmp_path):
    trained = valued()
    train_values(trained, range(1))
    trained.save(tmp_path)
    with pytest.raises(StorageError, match=r"value_head\.(weight|bias)"):
        learner().load(tmp_path)
