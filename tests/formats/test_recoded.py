"""Rows by another codec: the same values, in pieces of bounded size."""

import numpy as np
import pytest
from folder_reader import pictures

import stepwell
from stepwell import Array, EncodedRows, Image, Video
from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.formats import recoded
from stepwell.formats.recoded import Recoded

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

PIXELS = pictures(1, 9)
PNG = Image((16, 24, 3), codec="png")


def encoded(feature, values=PIXELS):
    codec = make_codec(feature)
    if not codec.is_sequential:
        return EncodedRows([codec.encode(value) for value in values])
    encoder = codec.encoder()
    blobs = [blob for value in values for blob in encoder.put(value)] + encoder.end()
    encoder.close()
    return EncodedRows(blobs)


@pytest.mark.parametrize("before", [PNG, Image((16, 24, 3), codec="delta", every=4), Image((16, 24, 3), codec="zstd")])
@pytest.mark.parametrize("codec", ["raw", "png", "delta", "zstd"])
def test_lossless_rows_are_the_same_by_every_codec(before, codec, tmp_path):
    if "zstd" in (before.codec, codec) or "delta" in (before.codec, codec):
        pytest.importorskip("zstandard")
    store = stepwell.create(tmp_path / "x.well", {"top": Image((16, 24, 3), codec=codec)})
    with store.writer() as writer:
        writer.add_episode({"top": Recoded(encoded(before), before)})
    np.testing.assert_array_equal(store[0]["top"], PIXELS)


@pytest.mark.parametrize("rows_a_piece", [1, 2, 3, 100])
@pytest.mark.parametrize("gop", [1, 4, 20])
def test_pieces_of_any_size_are_the_same_rows_whatever_the_runs(rows_a_piece, gop, monkeypatch):
    pytest.importorskip("zstandard")
    before = Image((16, 24, 3), codec="delta", every=gop)
    monkeypatch.setattr(recoded, "PIECE_BYTES", rows_a_piece * before.row_bytes)
    pieces = [piece.copy() for piece in Recoded(encoded(before), before).pieces(Image((16, 24, 3)))]
    assert max(map(len, pieces)) <= rows_a_piece
    np.testing.assert_array_equal(np.concatenate(pieces), PIXELS)


@pytest.mark.parametrize("rows_a_piece", [1, 3, 4])
def test_pieces_of_long_runs_of_video_are_the_same_pictures(rows_a_piece, monkeypatch):
    pytest.importorskip("av")
    before = Video((16, 24, 3), gop=7)
    whole = list(Recoded(encoded(before), before).pieces(Image((16, 24, 3))))
    assert [len(piece) for piece in whole] == [7, 2]
    monkeypatch.setattr(recoded, "PIECE_BYTES", rows_a_piece * before.row_bytes)
    pieces = [piece.copy() for piece in Recoded(encoded(before), before).pieces(Image((16, 24, 3)))]
    np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate(whole))


def test_a_piece_is_decoded_only_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(recoded, "PIECE_BYTES", 2 * PNG.row_bytes)
    taken = []

    class Counting:
        num_rows = len(PIXELS)

        def rows(self, feature):
            for row, blob in enumerate(encoded(feature)):
                taken.append(row)
                yield blob

    pieces = iter(Recoded(Counting(), PNG).pieces(Image((16, 24, 3))))
    next(pieces)
    assert taken == [0, 1]
    rows = iter(Recoded(Counting(), PNG).rows(Image((16, 24, 3), codec="jpeg")))
    taken.clear()
    next(rows)
    assert taken == [0, 1]


def test_video_is_decoded_run_by_run(tmp_path):
    pytest.importorskip("av")
    video = Video((16, 24, 3), gop=3, crf=10)
    store = stepwell.create(tmp_path / "x.well", {"top": Image((16, 24, 3))})
    with store.writer() as writer:
        writer.add_episode({"top": Recoded(encoded(video), video)})
    assert np.abs(store[0]["top"].astype(int) - PIXELS).mean() < 12
    assert not np.array_equal(store[0]["top"][0], store[0]["top"][8])


def test_rows_become_video_as_if_their_pixels_were_written(tmp_path):
    pytest.importorskip("av")
    store = stepwell.create(tmp_path / "x.well", {"top": Video((16, 24, 3))})
    with store.writer() as writer:
        writer.add_episode({"top": Recoded(encoded(PNG), PNG)})
        writer.add_episode({"top": PIXELS})
    np.testing.assert_array_equal(store[0]["top"], store[1]["top"])


def test_a_damaged_row_names_where_and_which_steps(monkeypatch):
    monkeypatch.setattr(recoded, "PIECE_BYTES", 2 * PNG.row_bytes)
    rows = [*encoded(PNG)]
    rows[5] = rows[5][:40]
    with pytest.raises(DecodeError, match=r"episode 3, feature 'top', steps 4 to 5: png row"):
        list(Recoded(EncodedRows(rows), PNG, "episode 3, feature 'top'").rows(Image((16, 24, 3), codec="jpeg")))


def test_a_damaged_row_leaves_nothing_of_a_raw_episode(tmp_path):
    rows = [*encoded(PNG)]
    rows[5] = rows[5][:40]
    store = stepwell.create(tmp_path / "x.well", {"top": Image((16, 24, 3)), "action": Array(1)})
    with store.writer() as writer:
        with pytest.raises(DecodeError):
            writer.add_episode({"top": Recoded(EncodedRows(rows), PNG), "action": np.zeros((9, 1), np.float32)})
        writer.add_episode({"top": PIXELS[:3], "action": np.ones((3, 1), np.float32)})
    assert [episode.length for episode in store] == [3]
    np.testing.assert_array_equal(store[0]["top"], PIXELS[:3])


@pytest.mark.parametrize("codec", ["raw", "png", "lz4"])
def test_images_of_any_size_are_recoded_one_by_one(codec, tmp_path):
    before, after = Image((None, None, 3), codec="png"), Image((None, None, 3), codec=codec)
    images = [picture[: 3 + k, : 20 - k].copy() for k, picture in enumerate(PIXELS)]
    rows = encoded(before, images)
    given = Recoded(rows, before)
    assert (given.num_rows, given.nbytes) == (9, rows.nbytes)
    store = stepwell.create(tmp_path / "x.well", {"top": after})
    with store.writer() as writer:
        writer.add_episode({"top": given})
    assert all(np.array_equal(a, b) for a, b in zip(store[0]["top"], images, strict=True))
    with pytest.raises(DecodeError, match="encoded rows, step 1: png row of 5 bytes"):
        list(Recoded(EncodedRows([rows[0], b"nothi"]), before).rows(after))


@pytest.mark.parametrize("ending", ["end", "left", "damage"])
def test_encoders_are_closed_however_the_rows_end(monkeypatch, ending):
    feature = Image((16, 24, 3), codec="delta", every=4)
    kind = type(make_codec(feature))
    opened, closed = [], []

    def encoder(self, *args, make=kind.encoder):
        made = make(self, *args)
        opened.append(made)
        close = made.close
        monkeypatch.setattr(type(made), "close", lambda self, close=close: (closed.append(self), close()), raising=True)
        return made

    rows = encoded(PNG)
    if ending == "damage":
        rows = EncodedRows([*[*rows.rows(PNG)][:-1], b"no picture"])
    monkeypatch.setattr(kind, "encoder", encoder)
    blobs = Recoded(rows, PNG).rows(feature)
    if ending == "damage":
        with pytest.raises(DecodeError):
            list(blobs)
    elif ending == "end":
        assert len(list(blobs)) == len(PIXELS)
    else:
        next(blobs)
        blobs.close()
    assert len(opened) == 1
    assert closed == opened
