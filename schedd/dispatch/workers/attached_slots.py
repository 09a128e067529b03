"""Index of the slots that attached workers offer, updated only for changed workers.

    a grant, a push, a drain … ──→ changed ──before the next round──→ offers
    last message of each worker, the oldest first ──→ a silent worker offers nothing

A round reads only workers that changed: of a thousand workers most are idle.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from schedd.core.dispatch.placement import SlotOffer
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import IncarnationId
from schedd.core.runs.records import SILENT_AFTER
from schedd.dispatch.workers.attached_worker import Attached
from schedkit.clock import boottime


class AttachedSlots:
    """Offers of attached workers. The registry owns `attached` and reports each change of it."""

    def __init__(
        self,
        attached: Mapping[IncarnationId, Attached],
        *,
        silent_after: float = SILENT_AFTER,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self.attached = attached
        self._silent_after = silent_after
        self._boot = boot
        self._awake: dict[IncarnationId, Attached] = {}
        """Workers that aren't silent, by the time of their last message, the oldest first."""
        self._changed: set[IncarnationId] = set()
        self._offers = SlotIndex()

    def spoke(self, attached: Attached) -> None:
        """Note a grant or heartbeat of a worker."""
        incarnation = attached.incarnation.id
        if self.attached.get(incarnation) is attached:  # a replaced stream may still deliver
            attached.spoke_at = self._boot()
            if self._awake.pop(incarnation, None) is not attached:
                self._changed.add(incarnation)
            self._awake[incarnation] = attached

    def remove_worker(self, incarnation: IncarnationId) -> None:
        """Note that the worker's stream has ended."""
        self._awake.pop(incarnation, None)
        self._changed.add(incarnation)

    def changed(self, incarnation: IncarnationId) -> None:
        """Note that the worker's offer may have changed."""
        self._changed.add(incarnation)

    def reserve_slots(self, incarnation: IncarnationId, slots: int) -> Attached:
        """Reserve slots of an offer."""
        attached = self.attached[incarnation]
        attached.under_way += slots
        self._offers.reserve_slots(incarnation, slots)
        return attached

    def let_go(self, attached: Attached, slots: int) -> None:
        """Release reserved slots."""
        attached.let_go(slots)
        self._changed.add(attached.incarnation.id)

    def speaks(self, attached: Attached) -> bool:
        """Return whether a grant or heartbeat arrived recently."""
        return attached.spoke_at >= self._boot() - self._silent_after

    def has_awake(self) -> bool:
        """Return whether any worker isn't silent."""
        self._hush()
        return bool(self._awake)

    def now(self) -> SlotIndex:
        """Return the current offers."""
        self._hush()
        for incarnation in self._changed:
            attached = self.attached.get(incarnation)
            slots = 0 if attached is None or incarnation not in self._awake else attached.available
            if attached is None or not slots:
                self._offers.drop(incarnation)
            else:
                offer = SlotOffer(attached.incarnation, slots, attached.last, attached.unable)
                self._offers.put(offer)
        self._changed.clear()
        return self._offers

    def still(self) -> SlotIndex:
        """Return what is still valid of the offers that `now` returned before.

        Slots granted since are left out: they are for later runs, which may not be those chosen
        before.
        """
        self._hush()
        for incarnation in self._changed:
            attached = self.attached.get(incarnation)
            if attached is None or incarnation not in self._awake:
                self._offers.drop(incarnation)
            elif not self._offers.is_by(attached.incarnation):
                self._offers.drop(incarnation)  # attached again: its skills may differ
            else:
                self._offers.lower(incarnation, attached.available, attached.last)
        return self._offers

    def _hush(self) -> None:
        """Drop the offers of workers that are silent for too long, until their next message."""
        while self._awake:
            incarnation, attached = next(iter(self._awake.items()))
            if self.speaks(attached):
                return
            del self._awake[incarnation]
            self._changed.add(incarnation)


class SlotReservation:
    """Slots reserved from the choice to the push; a with-block around both."""

    def __init__(self, offering: AttachedSlots) -> None:
        self._offering = offering
        self._under_way: Counter[Attached] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def reserve_slots(self, offer: SlotOffer, slots: int) -> None:
        """Reserve slots of a current offer."""
        self._under_way[self._offering.reserve_slots(offer.id, slots)] += slots

    def release(self) -> None:
        """Release what is still reserved: each run was pushed by now, or never will be."""
        for attached, slots in self._under_way.items():
            self._offering.let_go(attached, slots)
        self._under_way.clear()
