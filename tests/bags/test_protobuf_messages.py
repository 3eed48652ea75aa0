"""Messages of protobuf are read as Foxglove's writer writes them; damaged descriptors are told."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mcap_protobuf")
pytest.importorskip("foxglove_schemas_protobuf")
pytest.importorskip("simplejpeg")
from foxglove_schemas_protobuf.CompressedImage_pb2 import CompressedImage
from foxglove_schemas_protobuf.PoseInFrame_pb2 import PoseInFrame
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
from mcap_protobuf.writer import Writer
from recording_sets import jpeg

import stepwell
from stepwell.bags.protobuf_messages import ProtobufReader
from stepwell.errors import DecodeError, FormatError
from stepwell.formats import open_reader

COUNT, STEP = 12, 100_000_000


def write(path: Path) -> Path:
    from mcap.writer import CompressionType

    with path.open("wb") as file, Writer(file, compression=CompressionType.NONE) as writer:
        for number in range(COUNT):
            time = number * STEP
            image = CompressedImage(data=jpeg(number), format="jpeg", frame_id="top")
            raw = RawImage(width=10, height=8, encoding="rgb8", step=30, data=bytes([number]) * 240)
            pose = PoseInFrame()
            pose.pose.position.x, pose.pose.orientation.w = number, 1
            for topic, message in (("/image", image), ("/raw", raw), ("/pose", pose)):
                message.timestamp.FromNanoseconds(time - 7)
                writer.write_message(topic, message, log_time=time, publish_time=time)
    return path


def test_messages_of_foxglove_become_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    store = stepwell.open(f"mcap://{write(tmp_path / 'a.mcap')}?time=header&clock=/image")
    assert (store.schema["image"].codec, store.schema["raw"].codec) == ("file-span", "file-span")
    episode = store[0]
    assert episode.metadata["start"] == pytest.approx(-7e-9)
    assert (episode["raw"] == np.arange(COUNT)[:, None, None, None]).all()
    assert episode["image"].shape == (COUNT, 48, 64, 3)
    assert episode["pose.pose.position.x"].tolist() == list(range(COUNT))
    assert episode["pose.frame_id"] == [""] * COUNT
    assert not any("timestamp." in name for name in episode)


def test_damaged_descriptors_and_messages_are_told() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    for data in (
        b"\xff\xff",
        b"",
        FileDescriptorSet(file=[FileDescriptorProto(name="a", dependency=["b"])]).SerializeToString(),
    ):
        with pytest.raises(FormatError, match=r"demo.T: "):
            ProtobufReader("demo.T", data)
    circle = [FileDescriptorProto(name="a", dependency=["b"]), FileDescriptorProto(name="b", dependency=["a"])]
    with pytest.raises(FormatError, match=r"a, b import each other in a circle"):
        ProtobufReader("demo.T", FileDescriptorSet(file=circle).SerializeToString())
    good = FileDescriptorProto(name="a", package="demo", syntax="proto3")
    kind = good.message_type.add(name="T")
    kind.field.add(name="numbers", number=1, type=2, label=3)
    kind.field.add(name="again", number=2, type=11, label=1, type_name=".demo.T")
    reader = ProtobufReader("demo.T", FileDescriptorSet(file=[good]).SerializeToString())
    with pytest.raises(DecodeError, match=r"messages within messages"):
        reader.read(b"")
    with pytest.raises(DecodeError):
        reader.read(b"\xff\xff\xff")


def test_a_damaged_schema_leaves_its_topic_out_or_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"foxglove/PoseInFrame.proto", b"foxglove/XoseInXrame.proto"))
    with pytest.raises(FormatError):
        open_reader(path, options={"topics": "/pose"})
