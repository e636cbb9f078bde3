"""Text to ids and back, with the conversation around it taken from the tokenizer's own chat template.

Content (observations, goals, turns) and glue (role markers, end-of-turn tokens) are encoded apart. Content is encoded
with special tokens disabled: `<|im_end|>` inside an observation becomes ordinary characters and never a control token
(the method, section 6, fault 12). Glue is cut out of the chat template by rendering it around sentinels, once, so
a conversation grows by appending ids and nothing is tokenised again (fault 4).

Simplified: content and glue meet at a token boundary; only white space in front of content is encoded with it, since
most tokenizers join a word and the space before it. A template with other plain text next to the content could merge
with it when the whole conversation is tokenised at once; such ids differ from ours at the seams, and the text does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roleagent.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast

_Lead = tuple[list[int], str]
_SYSTEM, _USER, _ASSISTANT, _NEXT = "qxsystemxq", "qxuserxq", "qxassistantxq", "qxnextxq"


class PolicyTokenizer:
    """A Hugging Face fast tokenizer, seen as content and glue.

    Attributes:
        eot_id: token that ends the model's turn.
        stop_ids: `eot_id` and the tokenizer's end-of-text token; either ends a turn.
        pad_id: fills up batches; never inside a sequence.
        vocab_size: ids are smaller than this.
        prefix_consistent: the template renders past turns as they were generated. If false (some templates drop the
            reasoning of past turns), our conversation keeps them, since ids that were sampled are never changed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise PolicyError(f"tokenizer {type(tokenizer).__name__} is not a fast one; save it with a tokenizer.json")
        if not getattr(tokenizer, "chat_template", None):
            name = tokenizer.name_or_path or "this tokenizer"
            raise PolicyError(f"{name} has no chat template; use an instruct model, or add chat_template.jinja to it")
        self.hf = tokenizer
        description = tokenizer.backend_tokenizer.to_str()
        self._content = Tokenizer.from_str(description)
        self._glue = Tokenizer.from_str(description)
        for backend in (self._content, self._glue):
            backend.no_truncation()
            backend.no_padding()
        self._content.encode_special_tokens = True
        self._special = frozenset(int(i) for i in tokenizer.all_special_ids)
        self.vocab_size = len(tokenizer)
        self._pieces: dict[int, str] = {}
        self._read_template()
        eos = tokenizer.eos_token_id
        self.stop_ids: frozenset[int] = frozenset({self.eot_id} | ({int(eos)} if eos is not None else set()))
        pad = tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None else self.eot_id

    def encode_text(self, text: str) -> list[int]:
        """Ids of content; never a special token, whatever the text says. Lone surrogates become question marks."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(self._content.encode(clean, add_special_tokens=False).ids)

    def encode_turn(self, text: str) -> list[int]:
        """Ids of a turn as the model should generate it: the content and the end-of-turn token."""
        return [*self.encode_text(text), self.eot_id]

    def opening(self, system: str | None, first_user: str) -> list[int]:
        """Ids from the start of a conversation up to the model's first turn.

        With `system` None, the template may put its own default system prompt. A template without a system role gets
        the system text in front of the first user text.
        """
        if system is not None and self._opening_system is not None:
            before, middle, after = self._opening_system
            return [*self._join(before, system), *self._join(middle, first_user), *after]
        before, after = self._opening
        return [*self._join(before, first_user if system is None else f"{system}\n\n{first_user}"), *after]

    def next_user(self, text: str, ended: bool) -> list[int]:
        """Ids between the end of a generated turn and the model's next turn.

        Args:
            text: what the user, that is the environment, says.
            ended: the model itself emitted the end-of-turn token (if not, the turn was cut off and it is added).
        """
        before = self._after_ended if ended else self._after_cut
        return [*self._join(before, text), *self._before_turn]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without control tokens. Ids outside the vocabulary decode to nothing."""
        return str(self._glue.decode([int(i) for i in ids], skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself; "" for a control token, a replacement character for a part of one character."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self.decode([token_id])
        return piece

    def is_control(self, token_id: int) -> bool:
        """Whether an id is one of the tokenizer's special tokens."""
        return token_id in self._special

    def _read_template(self) -> None:
        """Cut the glue out of the template."""
        opening = self._render([("user", _USER)])
        before, after = self._split(opening, _USER)
        self._opening = (self._lead(before), self._ids(after))
        self._opening_system = self._read_system()
        conversation = self._render([("user", _USER), ("assistant", _ASSISTANT), ("user", _NEXT)])
        past, rest = self._split(conversation, _ASSISTANT)
        between, end = self._split(rest, _NEXT)
        self.prefix_consistent = past == opening
        glue, space = self._lead(between)
        marks = [position for position, token in enumerate(glue) if token in self._special]
        eos = self.hf.eos_token_id
        if marks:
            self.eot_id: int = glue[marks[0]]
            self._after_ended = (glue[marks[0] + 1 :], space)
        elif eos is not None:
            self.eot_id, self._after_ended = int(eos), (glue, space)
        else:
            raise PolicyError(f"the chat template of {self.hf.name_or_path} has no token that ends the model's turn")
        self._after_cut = (glue, space)
        self._before_turn = self._ids(end)

    def _read_system(self) -> tuple[_Lead, _Lead, list[int]] | None:
        """Glue of an opening with a system prompt; None when the template refuses or ignores that role."""
        try:
            before, rest = self._split(self._render([("system", _SYSTEM), ("user", _USER)]), _SYSTEM)
            middle, after = self._split(rest, _USER)
        except PolicyError:
            return None
        return self._lead(before), self._lead(middle), self._ids(after)

    def _render(self, messages: list[tuple[str, str]]) -> str:
        from jinja2.exceptions import TemplateError

        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            text = self.hf.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except (TemplateError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise PolicyError(f"the chat template of {self.hf.name_or_path} cannot be rendered: {reason}") from error
        return str(text)

    def _split(self, text: str, sentinel: str) -> tuple[str, str]:
        if text.count(sentinel) != 1:
            raise PolicyError(f"the chat template of {self.hf.name_or_path} does not show each message exactly once")
        before, _, after = text.partition(sentinel)
        return before, after

    def _lead(self, glue: str) -> _Lead:
        """Glue in front of content: its ids, and the white space that is encoded with the content."""
        text = glue.rstrip()
        return self._ids(text), glue[len(text) :]

    def _join(self, lead: _Lead, content: str) -> list[int]:
        ids, space = lead
        return [*ids, *self.encode_text(space + content)]

    def _ids(self, glue: str) -> list[int]:
        return list(self._glue.encode(glue, add_special_tokens=False).ids) if glue else []
