import pytest
import torch
from safetensors.torch import load_file, save_file

from roleagent.errors import StorageError
from roleagent.learning.optimizer_state import load_optimizer, optimizer_tensors, read_json, write_optimizer


def model_and_optimizer(width=3):
    torch.manual_seed(0)
    model = torch.nn.Linear(width, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def save_optimizer(optimizer, parameters, path):
    write_optimizer(optimizer_tensors(optimizer, parameters), path)


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(4, model.in_features)).square().sum().backward()
    optimizer.step()


def test_state_is_stored_by_parameter_name(tmp_path):
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 1)
    save_optimizer(optimizer, model.named_parameters(), tmp_path / "o.safetensors")
    tensors = load_file(tmp_path / "o.safetensors")
    moments = ("exp_avg", "exp_avg_sq", "step")
    assert set(tensors) == {f"{moment}/{name}" for moment in moments for name in ("weight", "bias")}
    # AdamW's first moments after one step: (1 - 0.9) g and (1 - 0.999) g^2.
    gradient = model.weight.grad
    torch.testing.assert_close(tensors["exp_avg/weight"], 0.1 * gradient)
    torch.testing.assert_close(tensors["exp_avg_sq/weight"], 0.001 * gradient.square())
    assert tensors["step/weight"].item() == 1.0


def test_round_trip_goes_on_exactly(tmp_path):
    model, optimizer = model_and_optimizer()
    for seed in range(3):
        step(model, optimizer, seed)
    save_optimizer(optimizer, model.named_parameters(), tmp_path / "o.safetensors")
    other, resumed = model_and_optimizer()
    step(other, resumed, 99)  # a state that must be replaced
    other.load_state_dict(model.state_dict())
    load_optimizer(resumed, other.named_parameters(), tmp_path / "o.safetensors")
    step(model, optimizer, 7)
    step(other, resumed, 7)
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.bias, other.bias)


def test_an_optimizer_that_never_stepped_has_an_empty_state(tmp_path):
    model, optimizer = model_and_optimizer()
    save_optimizer(optimizer, model.named_parameters(), tmp_path / "o.safetensors")
    step(model, optimizer, 1)
    load_optimizer(optimizer, model.named_parameters(), tmp_path / "o.safetensors")
    assert not optimizer.state


def test_other_models_are_refused_and_leave_the_state_alone(tmp_path):
    path = tmp_path / "o.safetensors"
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 1)
    save_optimizer(optimizer, model.named_parameters(), path)
    wide, wide_optimizer = model_and_optimizer(width=5)
    with pytest.raises(StorageError, match="'weight' does not fit"):
        load_optimizer(wide_optimizer, wide.named_parameters(), path)
    with pytest.raises(StorageError, match="which this model has not"):
        load_optimizer(optimizer, [("weight", model.weight)], path)
    assert set(optimizer.state) == set(model.parameters())


def test_an_incomplete_state_is_refused(tmp_path):
    path = tmp_path / "o.safetensors"
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 1)
    save_optimizer(optimizer, model.named_parameters(), path)
    tensors = load_file(path)
    del tensors["exp_avg_sq/bias"]
    save_file(tensors, path, metadata={"format": "roleagent-adamw-1"})
    with pytest.raises(StorageError, match="'bias' does not fit"):
        load_optimizer(optimizer, model.named_parameters(), path)


def test_damaged_missing_and_foreign_files(tmp_path):
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 1)
    path = tmp_path / "o.safetensors"
    with pytest.raises(StorageError, match="cannot be read"):
        load_optimizer(optimizer, model.named_parameters(), path)
    save_optimizer(optimizer, model.named_parameters(), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="cannot be read"):
        load_optimizer(optimizer, model.named_parameters(), path)
    save_file({"weight": torch.zeros(1)}, path)
    with pytest.raises(StorageError, match="format is None"):
        load_optimizer(optimizer, model.named_parameters(), path)


def test_json_must_be_an_object(tmp_path):
    path = tmp_path / "x.json"
    for text in ("{", "[1]", "\x00"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(StorageError, match=r"x\.json"):
            read_json(path)
