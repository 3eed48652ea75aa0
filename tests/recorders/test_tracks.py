import numpy as np
import pytest

from stepwell.recorders.tracks import EpisodeTrack, to_metadata


class ListWriter:
    """Keeps what it is given; refuses the steps that it is told to."""

    def __init__(self, refused=()):
        self.refused = refused
        self.open = []
        self.episodes = []

    def append(self, step):
        if step["action"] in self.refused:
            raise ValueError("refused")
        self.open.append(step)

    def end_episode(self, *, final, **record):
        self.episodes.append((self.open, final, record))
        self.open = []

    def discard_episode(self):
        self.open = []


def test_a_track_stores_each_observation_once_and_the_last_as_final():
    writer = ListWriter()
    track = EpisodeTrack(writer)
    track.begin({"observation": 0}, {"seed": 3})
    track.step({"action": 10}, {"observation": 1})
    track.step({"action": 11}, {"observation": 2})
    track.end(terminated=True)
    assert writer.episodes == [
        (
            [{"observation": 0, "action": 10}, {"observation": 1, "action": 11}],
            {"observation": 2},
            {"terminated": True, "truncated": False, "seed": 3},
        )
    ]
    assert not track.is_recording


def test_a_refused_step_takes_the_episode_with_it():
    writer = ListWriter(refused=[11])
    track = EpisodeTrack(writer)
    track.begin({"observation": 0}, {})
    track.step({"action": 10}, {"observation": 1})
    with pytest.raises(ValueError, match="refused"), track.no_gaps():
        track.step({"action": 11}, {"observation": 2})
    track.end()
    assert (writer.open, writer.episodes, track.is_recording) == ([], [], False)


def test_metadata_becomes_json_types():
    given = {"a": np.float32(0.5), "b": np.arange(2), "c": {1: (True, None)}, "d": 1 + 2j}
    assert to_metadata(given) == {"a": 0.5, "b": [0, 1], "c": {"1": [True, None]}, "d": "(1+2j)"}
