"""Where the time of a rollout goes, and what the predictions cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RolloutMeter:
    """Sums over the calls of `collect` that it is handed to. Times are wall-clock seconds of the loop's thread."""

    total_seconds: float = 0.0
    prefill_seconds: float = 0.0  #: engine and sampling, when contexts are read
    decode_seconds: float = 0.0  #: engine and sampling, when turns are written; guesses read with a context included
    environment_seconds: float = 0.0  #: waiting for environments, or inside those that run inline
    prediction_seconds: float = 0.0  #: each decode step's time, by its tokens' share behind an action
    prediction_only_seconds: float = 0.0  #: decode steps whose tokens were all behind an action
    prediction_any_seconds: float = 0.0  #: decode steps with any such token
    decode_steps: int = 0
    prefilled_tokens: int = 0  #: context tokens and the last token of the turn before them
    decoded_tokens: int = 0  #: sampled tokens, those that end a prefill included
    prediction_tokens: int = 0  #: sampled after the action was complete
    slots_read: int = 0  #: slots that passes of the engine read, one after the other
    lanes_read: int = 0  #: episodes that were in them; more than slots where episodes are the same so far
    environment_calls: int = 0
    abandoned_threads: int = 0  #: threads given up with an environment that did not answer

    def passed(self, slots: int, lanes: int) -> None:
        """Add a pass of the engine over slots in which so many episodes are."""
        self.slots_read += slots
        self.lanes_read += lanes

    def decoded(self, seconds: float, tokens: int, predicting: int) -> None:
        """Add a decode step that gave `tokens` tokens, of which `predicting` came behind their turn's action."""
        self.decode_seconds += seconds
        self.decode_steps += 1
        if predicting:
            self.prediction_seconds += seconds * predicting / tokens
            self.prediction_any_seconds += seconds
            if predicting == tokens:
                self.prediction_only_seconds += seconds

    def metrics(self) -> dict[str, float]:
        """Return metrics without a prefix.

        `tokens_per_second` counts sampled tokens over all the time. `prediction_seconds` is the predictions' part of
        the time of decoding (World-In-Agent's cost), step by step in proportion to the tokens that came behind their
        action; it lies between `prediction_only_seconds` and `prediction_any_seconds`. `loop_share` is what is left of
        the time when engine, sampling and environments are taken away. `episodes_a_slot` is 1 where none are alike.
        """
        total = self.total_seconds
        spent = self.prefill_seconds + self.decode_seconds + self.environment_seconds
        predictions = self.prediction_tokens / self.decoded_tokens if self.decoded_tokens else 0.0
        return {
            "seconds": total,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "environment_seconds": self.environment_seconds,
            "prediction_seconds": self.prediction_seconds,
            "prediction_only_seconds": self.prediction_only_seconds,
            "prediction_any_seconds": self.prediction_any_seconds,
            "prediction_token_share": predictions,
            "loop_share": max(0.0, total - spent) / total if total else 0.0,
            "tokens_per_second": self.decoded_tokens / total if total else 0.0,
            "decode_batch_mean": self.decoded_tokens / self.decode_steps if self.decode_steps else 0.0,
            "episodes_a_slot": self.lanes_read / self.slots_read if self.slots_read else 0.0,
            "environment_calls": float(self.environment_calls),
            "abandoned_threads": float(self.abandoned_threads),
        }
