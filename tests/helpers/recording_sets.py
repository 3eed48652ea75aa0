"""Recordings as robots make them: MCAP by mcap and mcap-ros2-support, bags of ROS 1 and 2 by rosbags."""

from pathlib import Path
from typing import Any

import numpy as np

START, STEP, COUNT = 10**18, 10_000_000, 60
RULE = "=" * 80 + "\n"
HEADER = f"{RULE}MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
DEFINITIONS = {
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\n"
    + HEADER,
    "sensor_msgs/msg/CompressedImage": "std_msgs/Header header\nstring format\nuint8[] data\n" + HEADER,
    "sensor_msgs/msg/Image": (
        "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
        "uint8[] data\n" + HEADER
    ),
    "std_msgs/msg/String": "string data\n",
    "std_msgs/msg/Int16": "# a comment\nint16 MOST=3\nint16 data\n",
}


def jpeg(number: int) -> bytes:
    import simplejpeg

    return simplejpeg.encode_jpeg(np.full((48, 64, 3), 2 * number, np.uint8))


def messages() -> list[tuple[str, str, int, dict[str, Any]]]:
    """Return topic, type, time and values of what is recorded, in the order of the times."""
    found = []
    for number in range(COUNT):
        time = START + number * STEP
        # sent half a millisecond before it is recorded
        sent = time - 500_000
        head = {"stamp": {"sec": sent // 10**9, "nanosec": sent % 10**9}, "frame_id": "base"}
        joints = {"name": ["a", "b"], "position": np.array([number, 2.0 * number]), "velocity": np.zeros(0)}
        found.append(("/arm/joint_states", "sensor_msgs/msg/JointState", time, {"header": head, **joints}))
        found.append(("/count", "std_msgs/msg/Int16", time + 1, {"data": number}))
        if number % 10 == 0:
            found.append(("/say", "std_msgs/msg/String", time + 2, {"data": f"word {number}"}))
        if number % 3 == 0:
            image = {"header": head, "format": "jpeg", "data": np.frombuffer(jpeg(number), np.uint8)}
            found.append(("/camera/image", "sensor_msgs/msg/CompressedImage", time + 3, image))
            for topic, encoding, pixels in (
                ("/camera/depth", "16UC1", np.full((8, 10), number, np.uint16)),
                ("/camera/bgr", "bgr8", np.full((8, 10, 3), [1, 2, number], np.uint8)),
            ):
                values = {"height": 8, "width": 10, "encoding": encoding, "is_bigendian": 0, "step": pixels.nbytes // 8}
                data = {"data": pixels.reshape(-1).view(np.uint8)}
                found.append((topic, "sensor_msgs/msg/Image", time + 4, {"header": head, **values, **data}))
    return found


def write_mcap(path: Path, compression: str = "NONE") -> Path:
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType[compression], chunk_size=10_000)
        schemas = {name: writer.register_msgdef(name, text) for name, text in DEFINITIONS.items()}
        for topic, kind, time, values in messages():
            plain = {
                name: value.tobytes() if name == "data" else value.tolist()
                for name, value in values.items()
                if isinstance(value, np.ndarray)
            }
            writer.write_message(topic, schemas[kind], {**values, **plain}, time, time - 500_000)
        writer.finish()
    return path


def write_ros1_mcap(path: Path, **options: Any) -> Path:
    """Write serialized messages of ROS 1, and one topic of JSON."""
    from mcap.writer import Writer
    from rosbags.typesys import Stores, get_typestore

    path.parent.mkdir(parents=True, exist_ok=True)
    store = get_typestore(Stores.ROS1_NOETIC)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        channels: dict[str, int] = {}
        for topic, kind, time, values in messages():
            if topic not in channels:
                text = store.generate_msgdef(kind)[0].encode()
                schema = writer.register_schema(kind.replace("/msg/", "/"), "ros1msg", text)
                channels[topic] = writer.register_channel(topic, "ros1", schema)
            message = made(store, kind, values, is_ros1=True)
            writer.add_message(channels[topic], time, bytes(store.serialize_ros1(message, kind)), time)
        schema = writer.register_schema("pose", "jsonschema", b"{}")
        channel = writer.register_channel("/pose", "json", schema)
        for number in range(COUNT):
            writer.add_message(channel, START + number * STEP, b'{"x": %d, "more": {"y": [1, 2.5]}}' % number, START)
        writer.finish()
    return path


def made(store: Any, kind: str, values: dict[str, Any], *, is_ros1: bool) -> Any:
    """Return a message of rosbags."""
    values = dict(values)
    if "header" in values:
        head = values["header"]
        stamp = store.types["builtin_interfaces/msg/Time"](**head["stamp"])
        more = {"seq": 0} if is_ros1 else {}
        values["header"] = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id=head["frame_id"], **more)
    if "velocity" in values:
        values["effort"] = np.zeros(0)
    return store.types[kind](**values)


def _record(writer: Any, store: Any, *, is_ros1: bool) -> None:
    serialize = store.serialize_ros1 if is_ros1 else store.serialize_cdr
    connections: dict[str, Any] = {}
    for topic, kind, time, values in messages():
        if topic not in connections:
            connections[topic] = writer.add_connection(topic, kind, typestore=store)
        writer.write(connections[topic], time, serialize(made(store, kind, values, is_ros1=is_ros1), kind))


def write_bag(path: Path, compression: str | None = None) -> Path:
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer(path)
    if compression is not None:
        writer.set_compression(Writer.CompressionFormat[compression])
    with writer:
        _record(writer, get_typestore(Stores.ROS1_NOETIC), is_ros1=True)
    return path


def write_bag2(path: Path, storage: str = "SQLITE3") -> Path:
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path, version=9, storage_plugin=StoragePlugin[storage]) as writer:
        _record(writer, get_typestore(Stores.ROS2_HUMBLE), is_ros1=False)
    return path
