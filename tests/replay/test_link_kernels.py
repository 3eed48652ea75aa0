import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.replay.link_kernels import (
    ABSENT,
    END,
    FIRST,
    LAST,
    NEXT,
    PREVIOUS,
    add_members,
    append_slots,
    pop_slots,
    remove_members,
    unlink_slots,
)

SLOTS = st.lists(st.integers(0, 15), max_size=8, unique=True)


@settings(deadline=None, max_examples=60)
@given(changes=st.lists(st.tuples(st.sampled_from(["append", "unlink", "first", "last"]), SLOTS), max_size=20))
def test_a_list_holds_what_a_plain_list_does_both_ways(changes: list[tuple[str, list[int]]]) -> None:
    links, ends, model = np.full((16, 2), ABSENT, np.int32), np.full((1, 2), END, np.int32), list[int]()
    for what, slots in changes:
        there = [slot for slot in slots if slot in model]
        if what == "append":
            new = [slot for slot in slots if slot not in model]
            assert append_slots(np.array(slots, np.int64), links, ends) == len(new)
            model += new
        elif what == "unlink":
            assert unlink_slots(np.array([*slots, 99]), links, ends) == len(there)
            model = [slot for slot in model if slot not in slots]
        elif model:
            popped = np.empty(1, np.int64)
            pop_slots(links, ends, FIRST if what == "first" else LAST, popped)
            assert popped[0] == model.pop(0 if what == "first" else -1)
        for end, step, expected in ((FIRST, NEXT, model), (LAST, PREVIOUS, model[::-1])):
            seen, slot = [], int(ends[0, end])
            while slot != END:
                seen.append(slot)
                slot = int(links[slot, step])
            assert seen == expected


@settings(deadline=None, max_examples=60)
@given(changes=st.lists(st.tuples(st.booleans(), SLOTS), max_size=20))
def test_a_set_holds_what_a_plain_set_does(changes: list[tuple[bool, list[int]]]) -> None:
    members, places, num, model = np.empty(16, np.int32), np.full(16, ABSENT, np.int32), 0, set[int]()
    for is_added, slots in changes:
        change = add_members if is_added else remove_members
        num = change(np.array(slots, np.int64), members, places, num)
        model = model | set(slots) if is_added else model - set(slots)
        assert set(members[:num].tolist()) == model
        assert len(model) == num
        assert all(members[places[slot]] == slot for slot in model)
        assert (np.delete(places, list(model)) == ABSENT).all()


def test_what_is_too_short_tells_what_it_needs_and_stays_as_it_is() -> None:
    links, ends = np.full((4, 2), ABSENT, np.int32), np.full((1, 2), END, np.int32)
    assert append_slots(np.array([1, 9]), links, ends) == -10
    assert add_members(np.array([1, 4]), np.empty(4, np.int32), links[:, 0].copy(), 0) == -5
    assert (links == ABSENT).all()
