"""A small policy from scratch: a tokenizer whose tokens are whole words and tags, and a small Llama.

Simplified against large models: one token a word keeps turns short, and copying an object's name out of the context
is one step of attention instead of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from roleagent.errors import PolicyError
from roleagent.policy.turns import TAGS

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
JSON_KEYS = ("failure_type", "root_cause", "critical_step", "lesson", "retrieval_query")

# One token a role, and an end only where the model has to say that it is done: the next role ends the others.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if message['role'] == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

# Pieces that BPE may not cross, in order of preference: a tag; a JSON key with its colon; a word with the space before
# it; a number of up to two digits; a quote with what closes it; other punctuation; white space.
_PIECES = (
    r"</?(?:think|action|predict)>"
    r'| ?"[a-z_]+":'
    r"| ?\p{L}+(?:'\p{L}+)?"
    r"| ?\p{N}{1,2}"
    r'| ?"[,.}\]]*'
    r"| ?<(?!/?(?:think|action|predict)>)"
    r"| ?[^\s\p{L}\p{N}<\"]+"
    r"|\s+"
)


def build_small_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts.

    The tags of the turn format and the JSON keys of a diagnosis are single ordinary tokens, not special ones: they are
    learned as merges, so they are encoded as text and decoded as text. An environment that prints a tag gives the same
    token; that is harmless, since only generated tokens are parsed.

    Args:
        texts: what the policy will read and write.
        vocab_size: upper bound of the vocabulary, the 256 bytes and 5 special tokens included.

    Raises:
        PolicyError: the vocabulary is too small to hold the tags and keys.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, SYSTEM, USER, ASSISTANT, END]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    wanted = [*TAGS, *(f'{space}"{key}":' for key in JSON_KEYS for space in ("", " "))]
    tokenizer.train_from_iterator(_with_pieces(texts, wanted), trainer)
    for piece in wanted:
        if len(tokenizer.encode(piece, add_special_tokens=False).ids) != 1:
            raise PolicyError(f"vocab_size {vocab_size} is too small: '{piece.strip()}' does not become one token")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_small_model(
    vocab_size: int,
    *,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 512,
    max_context: int = 2048,
    rope_theta: float = 10_000.0,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A Llama with random weights, tied embeddings and rotary positions, in float32.

    Args:
        vocab_size: rows of the embedding.
        width: size of the residual stream; a multiple of `heads`, with an even quotient.
        layers: number of blocks.
        heads: query heads.
        kv_heads: key-value heads; divides `heads`.
        intermediate: hidden size of the gated MLP.
        max_context: longest sequence, in tokens.
        rope_theta: base of the rotary positions.
        seed: of the weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if width % heads or heads % kv_heads or (width // heads) % 2:
        raise PolicyError(f"width {width}, heads {heads} and kv_heads {kv_heads} do not fit together")
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_context,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=4,
        initializer_range=width**-0.5 if width < 512 else 0.02,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.train(False)
    return model


def _with_pieces(texts: Iterable[str], pieces: list[str]) -> Iterator[str]:
    """The texts, each followed by the pieces, so that their merges are among the most frequent ones."""
    for text in texts:
        yield text
        yield from pieces
