"""Loading and saving: what is saved is loaded, and every fault is one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from roleagent import hub
from roleagent.config import list_presets, load_config
from roleagent.errors import PolicyError
from roleagent.policy import packaged
from roleagent.policy.model import QUICKSTART, Policy, context_length, load_policy, resolve_device, save_policy
from roleagent.policy.small import build_small_model, build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    tokenizer = PolicyTokenizer(build_small_tokenizer(["a red mug"], 500))
    model = build_small_model(tokenizer.vocab_size, width=16, layers=1, intermediate=16, max_context=32)
    save_policy(Policy(model, tokenizer, "test", 32), tmp_path / "policy")
    return tmp_path / "policy"


def _refused(spec: str, match: str, **options: str) -> None:
    with pytest.raises(PolicyError, match=match) as caught:
        load_policy(spec, device="cpu", **options)
    assert "\n" not in str(caught.value)


def test_round_trip(folder: Path) -> None:
    policy = load_policy(str(folder), device="cpu")
    assert policy.max_context == 32
    assert policy.device == torch.device("cpu")
    assert not policy.model.training
    assert policy.tokenizer.decode(policy.tokenizer.encode_turn("a red mug")) == "a red mug"
    assert len(policy.tokenizer.opening("a", "a")) == 5
    again = folder.parent / "again"
    save_policy(policy, again)
    second = load_policy(str(again), device="cpu")
    for (name, weight), other in zip(policy.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(weight, other), name
    assert [path.suffix for path in again.glob("model*")] == [".safetensors"]


def test_dtype_and_checkpointing(folder: Path) -> None:
    policy = load_policy(str(folder), dtype="bfloat16", device="cpu", gradient_checkpointing=True)
    assert policy.model.dtype == torch.bfloat16
    assert policy.model.is_activation_checkpointing
    _refused(str(folder), "dtype 'int8' is not one of", dtype="int8")


def test_faulty_folders(folder: Path, tmp_path: Path) -> None:
    _refused(str(tmp_path / "nowhere"), "does not exist")
    _refused("./nowhere/at/all", "does not exist")
    (tmp_path / "empty").mkdir()
    _refused(str(tmp_path / "empty"), "config.json is missing")
    (folder / "model.safetensors").write_bytes(b"not weights")
    _refused(str(folder), "cannot load model")
    (folder / "model.safetensors").unlink()
    _refused(str(folder), "cannot load model")


def test_pickled_weights_are_not_read(folder: Path) -> None:
    policy = load_policy(str(folder), device="cpu")
    torch.save(policy.model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    _refused(str(folder), "cannot load model")


def test_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    _refused(str(folder), "has no chat template")


def test_tokenizer_larger_than_the_model(folder: Path) -> None:
    policy = load_policy(str(folder), device="cpu")
    save_policy(Policy(build_small_model(300, width=16, layers=1), policy.tokenizer, "test", 32), folder)
    _refused(str(folder), "fewer embeddings")


def test_a_packaged_policy_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    _refused("roleagent:nothing", "'roleagent:nothing' has no weights in this installation; there are: .*" + QUICKSTART)
    monkeypatch.setattr(packaged, "_HERE", tmp_path / "here")
    _refused(QUICKSTART, "has no weights in this installation; install a release")
    packaged.publish(folder, tmp_path / "here" / "quickstart")
    assert load_policy(QUICKSTART, device="cpu").spec == QUICKSTART


PACKAGED = packaged.packaged_names()


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_policy_is_what_its_card_says(name: str) -> None:
    policy = load_policy(packaged.PREFIX + name, device="cpu")
    folder = packaged.packaged_folder(packaged.PREFIX + name)
    assert folder is not None
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{sum(parameter.numel() for parameter in policy.model.parameters()):,} parameters" in card
    assert "Apache-2.0" in card
    assert sum(path.stat().st_size for path in folder.iterdir()) < 15_000_000
    presets = [load_config(preset) for preset in list_presets()]
    limits = [preset.policy.max_context for preset in presets if preset.policy.model == packaged.PREFIX + name]
    assert max(limits, default=0) <= policy.max_context, "a preset's episodes do not fit"


def test_every_preset_has_its_policy() -> None:
    wanted = {load_config(preset).policy.model for preset in list_presets()}
    assert {spec.removeprefix(packaged.PREFIX) for spec in wanted if spec.startswith(packaged.PREFIX)} <= set(PACKAGED)
    assert {"quickstart", "alfworld", "alfworld-trained"} == set(PACKAGED)


def test_compressed_weights_by_hand() -> None:
    matrix = torch.tensor([[127.0, -63.4, 0.6], [0.0, 0.0, 0.0], [-254.0, 2.9, 1.1]])
    stored = packaged.compress({"a": matrix, "b": torch.tensor([1.0, 2.5])})
    assert stored["a"].tolist() == [[127, -63, 1], [0, 0, 0], [-127, 1, 1]]  # 2.9 / 2 and 1.1 / 2, rounded
    assert stored["a.scale"].float().tolist() == [[1.0], [0.0], [2.0]]
    again = packaged.restore(stored)
    assert again["a"].tolist() == [[127.0, -63.0, 1.0], [0.0, 0.0, 0.0], [-254.0, 2.0, 2.0]]
    assert again["b"].tolist() == [1.0, 2.5]


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e4))
def test_compression_errs_by_at_most_a_step(seed: int, size: float) -> None:
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * size
    again = packaged.restore(packaged.compress({"w": matrix}))["w"]
    step = matrix.abs().amax(1, keepdim=True) / 127
    assert bool(((again - matrix).abs() <= step).all())


def test_a_published_policy_is_nearly_the_same_and_loads_alike(folder: Path, tmp_path: Path) -> None:
    size = packaged.publish(folder, tmp_path / "small")
    assert size < (folder / "model.safetensors").stat().st_size / 2
    torch.manual_seed(5)
    before = torch.get_rng_state()
    policy, compressed = (load_policy(str(path), device="cpu") for path in (folder, tmp_path / "small"))
    assert torch.equal(before, torch.get_rng_state()), "loading must not disturb the random numbers"
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        first, second = (item.model(ids).logits.softmax(-1) for item in (policy, compressed))
    assert float((first - second).abs().max()) < 0.02
    assert not torch.equal(first, second)
    assert compressed.model.lm_head.weight is compressed.model.get_input_embeddings().weight
    assert load_policy(str(tmp_path / "small"), dtype="bfloat16", device="cpu").model.dtype == torch.bfloat16


def test_packaged_weights_that_lack_a_matrix_are_refused(folder: Path, tmp_path: Path) -> None:
    packaged.publish(folder, tmp_path / "small")
    path = tmp_path / "small" / packaged.WEIGHTS
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.weight"], tensors["model.layers.0.mlp.up_proj.weight.scale"]
    save_file(tensors, path)
    _refused(str(tmp_path / "small"), r"not those of its config\.json: model\.layers\.0\.mlp\.up_proj\.weight")


def test_a_trained_policy_is_kept_as_its_difference(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "_HERE", tmp_path / "here")
    packaged.publish(folder, tmp_path / "here" / "start")
    weights = load_file(folder / "model.safetensors")
    trained = tmp_path / "trained"
    shutil.copytree(folder, trained)
    changed = {name: item + 0.2 * item.abs().amax() * torch.randn_like(item) for name, item in weights.items()}
    save_file(changed, trained / "model.safetensors", metadata={"format": "pt"})
    packaged.publish(trained, tmp_path / "whole")
    packaged.publish(trained, tmp_path / "here" / "end", base="start")
    assert packaged.packaged_names() == ["end", "start"]
    whole = load_policy(str(tmp_path / "whole"), device="cpu").model.state_dict()
    again = load_policy("roleagent:end", device="cpu").model.state_dict()
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)

    packaged.publish(trained, tmp_path / "here" / "start")
    _refused("roleagent:end", "a difference from another 'roleagent:start' than the one here")


def test_differences_wrap_around() -> None:
    base = {"a": torch.tensor([[127, -127, 5]], dtype=torch.int8), "a.scale": torch.ones(1, 1), "b": torch.ones(1)}
    difference = {
        "a": torch.tensor([[2, -2, 0]], dtype=torch.int8),
        "a.scale": torch.full((1, 1), 3.0),
        "b": torch.zeros(1),
    }
    added = packaged._add(base, difference)
    assert added["a"].tolist() == [[-127, 127, 5]]
    assert added["a.scale"].tolist() == [[3.0]]
    assert added["b"].tolist() == [0.0]


def test_a_difference_from_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="a model of other shapes than 'roleagent:quickstart'"):
        packaged.publish(folder, tmp_path / "out", base="quickstart")
    assert not (tmp_path / "out").exists()


def test_publishing_from_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"holds no model\.safetensors"):
        packaged.publish(tmp_path, tmp_path / "out")


def test_offline_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _refused("no-such-owner/no-such-model", "'no-such-owner/no-such-model' is not in the cache .*HF_HUB_OFFLINE=1")
    monkeypatch.setattr(hub, "obstacle", lambda model, key: "")  # what the cache has of it may be damaged
    told = "cannot load model 'no-such-owner/no-such-model': .*; download it elsewhere and give its folder"
    _refused("no-such-owner/no-such-model", told)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(PolicyError, match=r"policy\.device=cpu"):
        resolve_device("cuda")
    with pytest.raises(PolicyError, match="unknown"):
        resolve_device("abacus")


def test_context_length() -> None:
    assert context_length(build_small_model(50, width=16, layers=1, max_context=77).config) == 77
    with pytest.raises(PolicyError, match="max_position_embeddings"):
        context_length(object())


def test_importing_the_room_is_light() -> None:
    code = (
        "import sys, roleagent.policy, roleagent.policy.turns, roleagent.policy.model, roleagent.policy.engines.base, "
        "roleagent.policy.engines.factory; print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
