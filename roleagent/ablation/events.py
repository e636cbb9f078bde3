"""What a person watching an ablation is told. The command line installs a listener; without one, events go nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from roleagent.listening import Seat

if TYPE_CHECKING:
    from roleagent.ablation.machine import Slots
    from roleagent.ablation.plan import Member, Plan


class AblationListener(Protocol):
    """Receives the events of an ablation from several threads."""

    def ablation_started(self, plan: Plan, slots: Slots, finished: int) -> None:
        """An ablation begins, or goes on with `finished` of its runs done."""

    def member_started(self, member: Member) -> None:
        """The process of a run was started."""

    def member_phase(self, member: Member, iteration: int, phase: str) -> None:
        """A run has come to a phase of an iteration."""

    def member_iteration(self, member: Member, iteration: int, metrics: Mapping[str, float]) -> None:
        """A run has committed an iteration."""

    def member_ended(self, member: Member, reason: str) -> None:
        """A run has ended; `reason` is empty if it finished."""


class _Silent:
    def ablation_started(self, plan: Plan, slots: Slots, finished: int) -> None: ...
    def member_started(self, member: Member) -> None: ...
    def member_phase(self, member: Member, iteration: int, phase: str) -> None: ...
    def member_iteration(self, member: Member, iteration: int, metrics: Mapping[str, float]) -> None: ...
    def member_ended(self, member: Member, reason: str) -> None: ...


_seat: Seat[AblationListener] = Seat(_Silent())
ablation_listener = _seat.current
listening_to_ablation = _seat.taken
