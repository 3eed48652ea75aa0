"""Windows of features with a rate, against a model: a sample at a time, no cleverness."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Field, Loader, View, WindowError
from tests.helpers.rated import Recorded, episodes, make, reach_of, record, schema_of, shown

SECONDS = st.sampled_from([-0.5, -0.21, -0.1, -0.05, 0.0, 0.04, 0.1, 0.3])


@st.composite
def fields(draw: Any, source: str = "tactile") -> Field:
    """Draw a field: native, resampled, at points, at steps."""
    pad = draw(st.sampled_from(["edge", "zero"]))
    align = draw(st.sampled_from([None, "nearest", "hold", "linear"]))
    way = draw(st.sampled_from(["native", "rate", "seconds", "offsets"]))
    if way in ("native", "rate"):
        begin = draw(st.sampled_from([-0.5, -0.2, -0.1, 0.0]))
        end = begin + draw(st.sampled_from([0.1, 0.25, 0.5]))
        rate = None if way == "native" else draw(st.sampled_from([20.0, 33.3]))
        return Field(source, span=(begin, end), rate=rate, align=None if way == "native" else align, pad=pad)
    if way == "seconds":
        return Field(
            source, seconds=draw(st.one_of(SECONDS, st.lists(SECONDS, min_size=1, max_size=4))), align=align, pad=pad
        )
    return Field(source, draw(st.sampled_from([None, 0, -1, [-1, 0], [0, 2]])), align=align, pad=pad)


def expected(field: Field, recorded: list[Any], rate: float, fps: float) -> tuple[np.ndarray, np.ndarray]:
    found = [shown(field, each, rate, fps, anchor) for each in recorded for anchor in range(each.length)]
    return np.array([value for value, _ in found]), np.array([mark for _, mark in found])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_windows_are_those_of_the_model(data):
    fps = data.draw(st.sampled_from([5.0, 10.0, 29.97]))
    rate = data.draw(st.sampled_from([12.0, 20.0, 47.0, 100.0]))
    recorded = [data.draw(episodes(fps, rate, number=n)) for n in range(data.draw(st.integers(1, 3)))]
    way = data.draw(st.sampled_from(["append", "batch", "whole"]))
    wanted = {f"f{n}": data.draw(fields()) for n in range(3)}
    path = tempfile.mkdtemp()
    try:
        codec = data.draw(st.sampled_from(["raw", "zstd"]))
        store = make(f"{path}/a.well", recorded, fps, rate, way, codec)
        for number, each in enumerate(recorded):
            samples = store[number]["tactile"]
            assert np.array_equal(samples.values, each.values)
            assert np.array_equal(samples.times, each.times)
        check(store, wanted, recorded, rate, fps)
    finally:
        shutil.rmtree(path)


def check(view: Any, wanted: dict[str, Field], recorded: list[Any], rate: float, fps: float, **options: Any) -> None:
    """Compare all windows of a loader with the model's, in the order of the anchors."""
    batches = list(Loader(view, {**wanted, "id": "step_id"}, batch_size=7, **options))
    order = np.argsort(np.concatenate([batch["id"] for batch in batches]), kind="stable")
    for key, field in wanted.items():
        values, marks = expected(field, recorded, rate, fps)
        found = np.concatenate([batch[key] for batch in batches])[order]
        is_pad = np.concatenate([batch[f"{key}_is_pad"] for batch in batches])[order]
        assert np.array_equal(is_pad.reshape(marks.shape), marks), field
        close = {"rtol": 1e-5, "atol": 1e-6} if field.align == "linear" else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(found.reshape(values.shape), values, err_msg=repr(field), **close)


FPS, RATE = 10.0, 47.0
ALL = {
    "native": Field("tactile", span=(-0.3, 0.2)),
    "past": Field("tactile", span=(-0.2, 0.0), pad="zero"),
    "points": Field("tactile", span=(-0.2, 0.2), rate=30, align="linear"),
    "hold": Field("tactile"),
    "near": Field("tactile", seconds=[[-0.1, 0.0], [0.05, 0.1]], align="nearest", pad="zero"),
}


@pytest.fixture(scope="module")
def recorded():
    """Episodes of the module's stores."""
    rng = np.random.default_rng(5)
    made = []
    for number, length in enumerate([9, 1, 14, 30, 3]):
        times = np.sort(rng.uniform(0, length / FPS, int(length * RATE / FPS)))
        values = np.stack([number * 1000 + np.arange(len(times)), times], axis=1).astype(np.float32)
        made.append(Recorded(length, values, times, number % 2 == 0))
    return made


@pytest.fixture(scope="module", params=["raw", "zstd"])
def store(recorded, tmp_path_factory, request):
    """A store of several segments, of plain and of encoded samples."""
    schema = schema_of(RATE, codec=request.param)
    store = stepwell.create(tmp_path_factory.mktemp("rated") / "a.well", schema, fps=FPS, segment_bytes=1)
    with store.writer() as writer:
        for each in recorded:
            record(writer, each, FPS)
    return store


@pytest.mark.parametrize("options", [
    {}, {"threads": 3}, {"order": "random", "seed": 3}, {"order": "pooled", "threads": 2}, {"page_cache": False},
    {"order": "pooled", "page_cache": False, "threads": 2},
])  # fmt: skip
def test_every_order_and_any_number_of_threads_give_the_same_windows(store, recorded, options):
    check(store, ALL, recorded, RATE, FPS, **options)


def test_views_of_several_stores_and_chosen_episodes(store, recorded, tmp_path):
    # codecs may differ
    other = make(f"{tmp_path}/b.well", recorded[2:4], FPS, RATE)
    view = View([store, other])
    batches = list(Loader(view, ALL, batch_size=9))
    values, marks = expected(ALL["native"], recorded + recorded[2:4], RATE, FPS)
    assert np.array_equal(np.concatenate([batch["native"] for batch in batches]), values)
    assert np.array_equal(np.concatenate([batch["native_is_pad"] for batch in batches]), marks)
    check(View(store).select([1, 3]), ALL, [recorded[1], recorded[3]], RATE, FPS)


def test_anchors_of_drop_are_those_whose_windows_lie_in_the_episode(store, recorded):
    field = Field("tactile", span=(-0.3, 0.2), pad="drop")
    first, last = reach_of(field, RATE, FPS)
    values, marks = [], []
    for each in recorded:
        for anchor in range(max(-first, 0), each.length - max(last, 0)):
            value, mark = shown(field, each, RATE, FPS, anchor)
            values.append(value)
            marks.append(mark)
    batches = list(Loader(store, {"x": field}, batch_size=5))
    assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), values)
    assert np.array_equal(np.concatenate([batch["x_is_pad"] for batch in batches]), marks)


def test_times_of_samples_are_a_feature_with_the_same_windows(store):
    fields = {"x": Field("tactile", span=(-0.2, 0)), "t": Field("tactile_time", span=(-0.2, 0)), "now": "timestamp"}
    for batch in Loader(store, fields, batch_size=16):
        assert np.array_equal(batch["x"][..., 1], batch["t"].astype(np.float32))
        lag = batch["now"][:, None] - batch["t"]
        assert (lag[~batch["x_is_pad"]] >= -1e-6).all()
        assert (lag[~batch["x_is_pad"]] <= 0.2 + 2 / RATE + 1e-6).all()


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_live_windows_never_change(tmp_path, recorded, codec):
    store = stepwell.create(tmp_path / "live.well", schema_of(RATE, codec=codec), fps=FPS)
    episode, seen = recorded[3], {}
    with store.writer() as writer:
        given = 0
        loader = None
        for step in range(episode.length):
            while given < len(episode.times) and episode.times[given] <= step / FPS:
                writer.append_at("tactile", episode.values[given], episode.times[given])
                given += 1
            writer.append(step=step, action=step)
            store.refresh()
            if loader is None and step >= 6:
                loader = Loader(store, {**ALL, "at": "step_index"}, batch_size=64)
            if loader is not None:
                loader.refresh()
                see(loader, seen, episode)
        writer.append_at("tactile", episode.values[given:], episode.times[given:])
        writer.end_episode()
        loader.refresh()
        assert see(loader, seen, episode) == episode.length
        reopened = stepwell.open(store.path, mode="r")
        assert see(Loader(reopened, {**ALL, "at": "step_index"}, batch_size=64), seen, episode) == episode.length


def see(loader: Any, seen: dict[int, Any], episode: Any) -> int:
    """Compare windows with the model, and with what was seen of them before; return how many there are."""
    count = 0
    for batch in loader:
        for i, anchor in enumerate(batch["at"].tolist()):
            own = {key: (batch[key][i].copy(), np.array(batch[f"{key}_is_pad"][i])) for key in ALL}
            before = seen.setdefault(anchor, own)
            for key in ALL:
                assert np.array_equal(own[key][0], before[key][0]), (key, anchor)
                assert np.array_equal(own[key][1], before[key][1])
            count += 1
    for anchor, own in seen.items():
        value, mark = shown(ALL["native"], episode, RATE, FPS, anchor)
        assert np.array_equal(own["native"][0], value)
        assert np.array_equal(own["native"][1], mark)
    return count


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_ring_that_cuts_episodes_shows_the_same_windows(tmp_path, codec):
    fps, rate = 50.0, 120.0
    schema = schema_of(rate, final=False, codec=codec)
    store = stepwell.create(tmp_path / "ring.well", schema, fps=fps, capacity=3000)
    rng = np.random.default_rng(0)
    length = 5000
    times = np.sort(rng.uniform(0, length / fps, int(length * rate / fps)))
    values = np.stack([np.arange(len(times)), times], axis=1).astype(np.float32)
    writer = store.writer()
    given = 0
    for step in range(length):
        upto = int(np.searchsorted(times, step / fps, side="right"))
        if upto > given:
            writer.append_at("tactile", values[given:upto], times[given:upto])
        given = upto
        writer.append(step=step, action=step)
    writer.close()
    assert store.num_episodes > 1
    field, points = Field("tactile", span=(-0.2, 0.1)), Field("tactile", span=(-0.1, 0.1), rate=50, align="linear")
    begin = int(store[0].skipped)
    # what was evicted is not there
    kept = times > (begin - 1) / fps
    whole = Recorded(length, values[kept], times[kept], False)
    loader = Loader(store, {"n": field, "p": points, "at": "step_index"}, batch_size=500)
    wanted = {begin, begin + 3, *range(begin + 1000, begin + 1100, 7)}
    pieces = [int(store[i].skipped) for i in range(store.num_episodes)]
    wanted |= {step + shift for step in pieces for shift in range(-14, 14)}
    compared = 0
    for batch in loader:
        for i, anchor in enumerate(batch["at"].tolist()):
            if anchor in wanted:
                near = (whole.times > anchor / fps - 1) & (whole.times < anchor / fps + 1)
                part = Recorded(length, whole.values[near], whole.times[near], False)
                for key, each in (("n", field), ("p", points)):
                    value, mark = shown(each, part, rate, fps, anchor)
                    np.testing.assert_allclose(batch[key][i], value, rtol=1e-6)
                    assert np.array_equal(batch[f"{key}_is_pad"][i], mark)
                compared += 1
    assert compared > 40


@pytest.mark.parametrize(("field", "message"), [
    (lambda: Field("tactile", span=(0.0, 0.001)), "holds 0 samples"),
    (lambda: Field("step", span=(-0.1, 0), rate=10), "a value a step"),
    (lambda: Field("step", align="hold"), "a value a step"),
    (lambda: Field(("tactile", "step"), combine="stack"), "different rates"),
    (lambda: Field("tactile", span=(0, -1)), "ends before"),
    (lambda: Field("tactile", span=0.1), "not .begin, end."),
    (lambda: Field("tactile", [0], span=(-1, 0)), "more than one"),
    (lambda: Field("tactile", rate=10), "Give it with span"),
    (lambda: Field("tactile", align="cubic"), "not one of"),
    (lambda: Field("tactile", seconds=[1e300]), "at most 2,147,483,648 steps"),
    (lambda: Field("tactile", span=(1e17, 1e17 + 32)), "at most 2,147,483,648 steps"),
])  # fmt: skip
def test_a_field_that_cannot_be_says_why(store, field, message):
    with pytest.raises(WindowError, match=message):
        Loader(store, {"x": field()})


def test_a_span_of_other_features_is_its_steps(store):
    batch = next(iter(Loader(store, {"step": Field("step", span=(-0.3, 0.2))}, batch_size=9)))
    assert batch["step"][4].tolist() == [2, 3, 4, 5, 6]


def test_stores_of_other_rates_agree_on_points_only(store, tmp_path, recorded):
    other = make(f"{tmp_path}/c.well", recorded[:1], FPS, 20.0)
    with pytest.raises(WindowError, match="rates of"):
        Loader(View([store, other]), {"x": Field("tactile", span=(-0.2, 0))})
    batch = next(iter(Loader(View([store, other]), {"x": Field("tactile", span=(-0.2, 0), rate=15)}, batch_size=4)))
    assert batch["x"].shape == (4, 3, 2)


@pytest.mark.parametrize("field", [Field("tactile", [-1, 0]), Field("tactile", span=(-0.2, 0), align="hold")])
def test_points_that_are_other_times_in_each_store_are_refused(store, tmp_path, recorded, field):
    # as many points in both: steps of other lengths, and rates that round alike
    rate = store.schema["tactile"].rate
    others = [Recorded(each.length, each.values[:0], each.times[:0], False) for each in recorded[:1]]
    other = make(f"{tmp_path}/d.well", others, FPS * 2, rate * 1.005)
    with pytest.raises(WindowError, match="other points in time"):
        Loader(View([store, other]), {"x": field})
    batch = next(iter(Loader(View([store, other]), {"x": Field("tactile", seconds=[-0.1, 0])}, batch_size=4)))
    assert batch["x"].shape == (4, 2, 2)


def test_integers_are_interpolated_as_floats(tmp_path):
    store = stepwell.create(tmp_path / "int.well", {"a": Array((), "int16"), "b": Array((), "int16", rate=10)}, fps=20)
    with store.writer() as writer:
        writer.add_episode({"a": np.zeros(4, np.int16), "b": stepwell.Samples(np.array([0, 3], np.int16))})
    batch = next(iter(Loader(store, {"b": Field("b", align="linear")}, batch_size=4)))
    assert batch["b"].dtype == np.float64
    assert batch["b"].tolist() == [0, 1.5, 3, 3]
    assert batch["b_is_pad"].tolist() == [False, False, False, True]


def test_a_window_that_ends_before_the_first_sample_shows_zeros_that_are_padding(tmp_path):
    # the sample that comes later may not be recorded yet
    times = 1.0 + np.arange(20) / RATE
    episode = Recorded(20, np.ones((20, 2), np.float32), times, False)
    store = make(f"{tmp_path}/late.well", [episode], FPS, RATE)
    batch = next(iter(Loader(store, {"x": Field("tactile", span=(-0.2, 0.0))}, batch_size=20)))
    assert not batch["x"][:9].any()
    assert batch["x_is_pad"][:9].all()
    assert batch["x"][10:15].all()
    assert not batch["x_is_pad"][12:14].any()
