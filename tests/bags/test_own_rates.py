"""Topics that keep their own rate beside those that are aligned."""

from __future__ import annotations

import numpy as np
import pytest

import stepwell
from stepwell import Field, Image, Loader
from stepwell.codecs import make_codec
from stepwell.errors import FormatError

pytest.importorskip("mcap_ros2")

JOINTS = [100_000_000 * step for step in range(20)]
FORCE = [int(1e9 * number / 47) + 3_000_000 for number in range(-5, 95)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A recording of joints at 10 Hz, forces at 47 Hz, and texts."""
    from mcap_ros2.writer import Writer

    path = tmp_path_factory.mktemp("bags") / "run.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        joints = writer.register_msgdef("demo_msgs/msg/Joints", "float64[] position")
        force = writer.register_msgdef("std_msgs/msg/Float32", "float32 data")
        text = writer.register_msgdef("std_msgs/msg/String", "string data")
        messages = [(time, "/joints", joints, {"position": [step, -1.0]}) for step, time in enumerate(JOINTS)]
        messages += [(time + 10**9, "/force", force, {"data": number}) for number, time in enumerate(FORCE)]
        messages += [(time + 10**9, "/text", text, {"data": "x"}) for time in JOINTS[:3]]
        # two of one time, of which the last is kept
        messages += [(FORCE[50] + 10**9, "/force", force, {"data": 1000.0})]
        messages = [(time if topic != "/joints" else time + 10**9, topic, *rest) for time, topic, *rest in messages]
        for time, topic, kind, value in sorted(messages, key=lambda each: each[0]):
            writer.write_message(topic, kind, value, log_time=time, publish_time=time)
        writer.finish()
    return path


def kept() -> tuple[list[float], list[float]]:
    """Return values and times of the forces in the episode."""
    found = [(1000.0 if number == 50 else float(number), time / 1e9) for number, time in enumerate(FORCE)]
    inside = [(value, time) for value, time in found if 0 <= time <= 2.0]
    return [value for value, _ in inside], [time for _, time in inside]


@pytest.mark.parametrize("way", ["open", "convert"])
def test_all_messages_of_a_topic_are_kept_at_its_own_rate(recording, tmp_path, way):
    address = f"mcap://{recording}?clock=/joints&topics=/joints,/force&align=nearest,/force=own"
    if way == "convert":
        stepwell.convert(address, tmp_path / "a.well")
    store = stepwell.open(address if way == "open" else tmp_path / "a.well")
    values, times = kept()
    samples = store[0]["force.data"]
    assert samples.values.tolist() == values
    np.testing.assert_allclose(samples.times, times, atol=1e-9)
    assert store.schema["force.data"].rate == pytest.approx(47.0, abs=0.05)
    assert store[0]["joints.position"][:, 0].tolist() == list(range(20))
    batch = next(iter(Loader(store, {"force": Field("force.data", span=(-0.1, 0.0))}, batch_size=20)))
    for anchor in range(3, 20):
        newest = max(i for i, time in enumerate(times) if time <= anchor / 10)
        assert batch["force"][anchor].tolist() == values[newest - 4 : newest + 1]
        assert not batch["force_is_pad"][anchor].any()


def test_all_topics_but_the_clock_may_keep_their_rates(recording):
    store = stepwell.open(f"mcap://{recording}?clock=/joints&topics=/joints,/force&align=own")
    assert dict(store.schema.rated) == {"force.data": "force.data_time"}
    store = stepwell.open(f"mcap://{recording}?clock=25&topics=/joints,/force&align=own")
    assert set(store.schema.rated) == {"joints.position", "force.data"}
    assert store.fps == 25


def record_cameras(path, files):
    """Write a recording of joints at 10 Hz and of two cameras at 24: image files, and plain pixels."""
    from mcap_ros2.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        joints = writer.register_msgdef("demo_msgs/msg/Joints", "float64[] position")
        compressed = writer.register_msgdef("sensor_msgs/msg/CompressedImage", "string format\nuint8[] data")
        fields = "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
        plain = writer.register_msgdef("sensor_msgs/msg/Image", fields)
        messages = [(time, "/joints", joints, {"position": [0.0]}) for time in JOINTS]
        for number, data in enumerate(files):
            time, head = number * 41_666_667, {"height": 8, "width": 16, "encoding": "mono8", "is_bigendian": 0}
            messages += [(time, "/wrist", compressed, {"format": "jpeg", "data": data})]
            messages += [(time, "/depth", plain, {**head, "step": 16, "data": bytes([number]) * 128})]
        for time, topic, kind, value in sorted(messages, key=lambda each: each[0]):
            writer.write_message(topic, kind, value, log_time=time + 10**9, publish_time=time)
        writer.finish()


@pytest.mark.parametrize("way", ["open", "convert"])
def test_cameras_keep_their_rates_and_their_files(tmp_path, way):
    codec = make_codec(Image((16, 24, 3), codec="jpeg"))
    files = [codec.encode(np.full((16, 24, 3), 5 * number, np.uint8)) for number in range(40)]
    record_cameras(tmp_path / "run.mcap", files)
    address = f"mcap://{tmp_path / 'run.mcap'}?clock=/joints&align=/wrist=own,/depth=own"
    if way == "convert":
        stepwell.convert(address, tmp_path / "a.well")
    store = stepwell.open(address if way == "open" else tmp_path / "a.well")
    wrist = store.schema["wrist"]
    assert wrist == Image((16, 24, 3), codec=wrist.codec, rate=wrist.rate)
    assert wrist.rate == pytest.approx(24, abs=0.01)
    decoded = [codec.decode(np.frombuffer(file, np.uint8)) for file in files]
    assert np.array_equal(store[0]["wrist"].values, decoded)
    np.testing.assert_allclose(store[0]["wrist"].times, np.arange(40) / 24, atol=1e-6)
    assert store[0]["depth"].values.reshape(40, -1)[:, 0].tolist() == list(range(40))
    batch = next(iter(Loader(store, {"wrist": Field("wrist", span=(-0.1, 0.0))}, batch_size=20)))
    for anchor in range(3, 15):
        newest = int(np.flatnonzero(store[0]["wrist_time"] <= anchor / 10)[-1])
        assert np.array_equal(batch["wrist"][anchor], decoded[newest - 1 : newest + 1])


@pytest.mark.parametrize(("options", "message"), [
    ("clock=/joints&align=/joints=own", "it is the clock"),
    ("clock=/joints&align=/text=own", "numbers and images of fixed shape"),
    ("clock=/joints&align=cubic", "nearest, hold, linear, own"),
])  # fmt: skip
def test_what_cannot_keep_its_rate_says_why(recording, options, message):
    with pytest.raises(FormatError, match=message):
        stepwell.open(f"mcap://{recording}?{options}")
