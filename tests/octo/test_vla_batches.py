"""Batches as Octo and OpenVLA make them: equal to those of their own code, which `tests/golden/make_octo.py` ran."""

import json
from pathlib import Path

import numpy as np
import octo_transforms
import pytest

import stepwell
from stepwell import Loader, View, mixed
from stepwell.errors import FormatError, WindowError
from stepwell.octo import (
    Standardize,
    dataset_statistics,
    load_statistics,
    octo_batches,
    openvla_batches,
    save_statistics,
    select_episodes,
)
from stepwell.recorders.sources import EpisodeData

pytest.importorskip("imagecodecs")
DATA = Path(__file__).parents[3] / "shared" / "data" / "rlds" / "tfrecord" / "mini_rlds"
GOLDEN = Path(__file__).parents[1] / "golden" / "octo.npz"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared RLDS sets are not beside this checkout")
BOTH = {"primary": "image", "wrist": "wrist_image"}
ONE = {"primary": "image", "wrist": None}
SMALL = {"primary": (32, 32), "wrist": 16}
MASK = [True, True, True, False]
ABSOLUTE = {"mini_rlds": [False, False, False, True]}
CASES = {
    "octo": (
        {"image_obs_keys": BOTH},
        {"window_size": 2, "action_horizon": 4, "resize_size": {"primary": (48, 40), "wrist": (16, 16)}},
    ),
    "octo_padded": (
        {"image_obs_keys": ONE, "standardize_fn": octo_transforms.standard, "max_action_dim": 7, "max_proprio_dim": 9},
        {"window_size": 3, "action_horizon": 2, "normalization": "bounds", "resize_size": SMALL},
    ),
    "octo_goal": (
        {"image_obs_keys": ONE},
        {"window_size": 2, "action_horizon": 3, "goal_relabeling": "uniform", "max_goal_distance": 1}
        | {"resize_size": SMALL},
    ),
    "openvla": (
        {"image_obs_keys": BOTH},
        {"window_size": 2, "future_action_window_size": 3, "absolute_action_mask": ABSOLUTE, "resize_size": SMALL},
    ),
    "openvla_bounds": (
        {"image_obs_keys": ONE, "standardize_fn": octo_transforms.constant},
        {"window_size": 1, "future_action_window_size": 7, "normalization": "bounds", "resize_size": SMALL},
    ),
}


def standard_of(case, **options):
    proprio = "state" if case.startswith("octo") else [None, "state"]
    return Standardize("mini_rlds", proprio_obs_key=proprio, language_key="language_instruction", **options)


def opened(case, split, **options):
    return stepwell.open(f"tfds://{DATA}", split=split, dct="fast", transform=standard_of(case, **options))


def all_of(view, made, **options):
    (batch,) = Loader(view, batch_size=view.num_steps, threads=0, **made, **options)
    return batch


@needs_data
@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_what_the_program_itself_makes(case):
    golden = np.load(GOLDEN)
    expected = {key.partition("/")[2]: golden[key] for key in golden if key.partition("/")[0] == case}
    theirs = json.loads(str(expected.pop("statistics")))
    options, settings = CASES[case]
    ours = dataset_statistics(opened(case, "all", **options))["mini_rlds"]
    assert (ours["num_transitions"], ours["num_trajectories"]) == (
        theirs["num_transitions"],
        theirs["num_trajectories"],
    )
    for key in ("action", "proprio"):
        for name in set(theirs[key]) - {"mask"}:
            # sums of float32
            np.testing.assert_allclose(
                ours[key][name], theirs[key][name], rtol=1e-5, atol=2e-7, err_msg=f"{key} {name}"
            )
    if case in ("octo_padded", "openvla"):
        theirs["action"]["mask"] = MASK
    store = opened(case, "train", **options)
    make = octo_batches if case.startswith("octo") else openvla_batches
    batch = all_of(store, make(store, statistics={"mini_rlds": theirs}, **settings))
    assert set(batch) == set(expected)
    for key, want in expected.items():
        found = np.asarray(batch[key])[: len(want)]
        if want.dtype.kind == "U":
            assert found.tolist() == want.tolist(), key
            continue
        assert (found.dtype, found.shape) == (want.dtype, want.shape), key
        atol = {"f": 1e-6, "u": 1}.get(want.dtype.kind, 0)
        np.testing.assert_allclose(found.astype(np.float64), want.astype(np.float64), rtol=0, atol=atol, err_msg=key)


@needs_data
def test_steps_and_episodes_are_left_out_where_their_images_are_references():
    idle = opened("octo", "train", image_obs_keys=BOTH, standardize_fn=octo_transforms.not_idle)
    whole = opened("octo", "train", image_obs_keys=BOTH)
    assert 0 < idle.num_steps < whole.num_steps
    moves = [np.abs(episode["action"][:, :3]).max(axis=1) > 0.5 for episode in whole]
    assert [episode.length for episode in idle] == [int(each.sum()) for each in moves if each.any()]
    kept = next(i for i, each in enumerate(moves) if each.any())
    expected = np.asarray(whole[kept]["observation.image_primary"])[moves[kept]]
    np.testing.assert_array_equal(np.asarray(idle[0]["observation.image_primary"]), expected)
    with pytest.raises(FormatError, match="leaves all 4 episodes out"):
        opened("octo", "train", image_obs_keys=BOTH, standardize_fn=octo_transforms.nothing)


def trajectories(name, path, lengths, dims, cameras, texts=None, **options):
    """A store of a made-up dataset: step t of episode e has action 100 e + t in each dimension."""
    standard = Standardize(
        name, cameras, proprio_obs_key="state", language_key="text", max_action_dim=4, max_proprio_dim=3, **options
    )
    made = []
    for number, length in enumerate(lengths):
        steps = 100.0 * number + np.arange(length)
        columns = {
            "observation.state": np.repeat(-steps[:, None], 2, 1),
            "action": np.repeat(steps[:, None], dims, 1) + np.arange(dims),
            "text": [f"do {number}" if texts is None else texts[number]] * length,
            **{
                f"observation.{camera}": np.full((length, 8, 8, 3), number + 1, np.uint8)
                for camera in cameras.values()
                if camera
            },
        }
        made.append(standard(EpisodeData(columns, terminated=True)))
    return stepwell.write_episodes(path, made, workers=1)


@pytest.fixture
def two(tmp_path):
    one = trajectories("arm", tmp_path / "arm.well", (5, 9, 7), 4, {"primary": "front", "wrist": "hand"})
    other = trajectories("leg", tmp_path / "leg.well", (6, 4), 2, {"primary": "front", "wrist": None}, ["", "walk"])
    return View([one, other])


def test_a_mixture_is_scaled_by_each_datasets_own_statistics_and_padded(two):
    statistics = dataset_statistics(two)
    made = octo_batches(two, window_size=2, action_horizon=3, resize_size=8)
    batches = list(Loader(two, batch_size=16, order=mixed([1, 1], num_samples=400), seed=2, **made))
    seen = np.concatenate([batch["dataset_name"] for batch in batches])
    assert 120 < (seen == "arm").sum() < 280
    for batch in batches:
        is_arm = batch["dataset_name"] == "arm"
        assert (batch["observation.pad_mask_dict.image_wrist"] == is_arm[:, None]).all()
        assert batch["observation.pad_mask_dict.image_primary"].all()
        assert (batch["observation.image_wrist"][~is_arm] == 0).all() and batch["observation.image_wrist"][is_arm].all()
        assert not batch["action"][~is_arm][..., 2:].any() and not batch["action_pad_mask"][~is_arm][..., 2:].any()
        assert not batch["observation.proprio"][..., 2:].any()
        texts = batch["task.language_instruction"]
        assert batch["task.pad_mask_dict.language_instruction"].tolist() == [text != "" for text in texts]
        for name in ("arm", "leg"):
            own = batch["dataset_name"] == name
            proprio = statistics[name]["proprio"]
            back = batch["observation.proprio"][own][:, -1, 0] * proprio["std"][0] + proprio["mean"][0]
            np.testing.assert_allclose(-back % 100, batch["observation.timestep"][own][:, -1], atol=1e-3)


def model(view, batch, window, horizon, goals):
    """Octo's chunks of raw actions by plain loops."""
    actions, completed = np.zeros_like(batch["action"]), np.zeros(batch["observation.task_completed"].shape, bool)
    lengths = np.repeat([episode.length for store in view.stores for episode in store], view.column("length"))
    for i, t in enumerate(batch["observation.timestep"][:, -1].tolist()):
        start = batch["first_action"][i]
        for w in range(window):
            for h in range(horizon):
                place = min(max(t + w - window + 1, 0) + h, lengths[i] - 1)
                actions[i, w, h] = start + place
                goal = lengths[i] - 1 if goals is None else goals[i]
                completed[i, w, h] = goal - (t - (window + 1) + w + h) <= 0
    return actions, completed


@pytest.mark.parametrize(("window", "horizon"), [(1, 1), (2, 4), (5, 3)])
@pytest.mark.parametrize("most", [None, 1, 3])
def test_chunks_and_goals_are_those_of_a_model(two, window, horizon, most):
    arm = View(two.stores[0])
    made = octo_batches(
        arm, window_size=window, action_horizon=horizon, normalization=None, goal_relabeling="uniform",
        max_goal_distance=most, resize_size=8,
    )  # fmt: skip
    fields = made["fields"] | {"episode": stepwell.Field("episode_index")}
    batch = all_of(arm, {"fields": fields, "transform": made["transform"]})
    batch["first_action"] = 100.0 * batch["episode"][:, None] + np.arange(4)
    goals, now = batch["task.timestep"], batch["observation.timestep"][:, -1]
    last = np.array([4, 8, 6])[batch["episode"]]
    furthest = last if most is None else np.minimum(now + most - 1, last)
    assert ((goals >= now) & (goals <= furthest)).all()
    assert (goals == now).any() and (most == 1 or (goals > now).any())
    np.testing.assert_array_equal(batch["task.proprio"][:, 0], -(100.0 * batch["episode"] + goals))
    assert (batch["task.image_primary"] == (batch["episode"] + 1)[:, None, None, None]).all()
    actions, completed = model(arm, batch, window, horizon, goals)
    np.testing.assert_array_equal(batch["action"], actions)
    np.testing.assert_array_equal(batch["observation.task_completed"], completed)
    np.testing.assert_array_equal(batch["action_pad_mask"], np.repeat(~completed[..., None], 4, -1))
    (nested,) = Loader(arm, batch_size=21, nested=True, **made)
    np.testing.assert_array_equal(nested["task"]["timestep"], goals)
    assert nested["observation"]["pad_mask_dict"]["timestep"].all()


def test_goals_of_openvla_lie_behind_the_anchor_and_end_its_actions(two):
    arm = View(two.stores[0])
    made = openvla_batches(
        arm, window_size=2, future_action_window_size=3, normalization=None, goal_relabeling="uniform", resize_size=8,
        absolute_action_mask={"arm": [False, True, False, False]},
    )  # fmt: skip
    batch = all_of(arm, {"fields": made["fields"] | {"episode": "episode_index"}, "transform": made["transform"]})
    goals, now, last = (
        batch["task.timestep"],
        batch["observation.timestep"][:, -1],
        np.array([4, 8, 6])[batch["episode"]],
    )
    assert ((goals > now) | (now == last)).all() and (goals <= last).all()
    places = now[:, None] + np.arange(-1, 4)
    values = 100.0 * batch["episode"][:, None] + np.clip(places, 0, goals[:, None])
    beyond = places > goals[:, None]
    assert beyond.any() and not beyond.all()
    np.testing.assert_array_equal(batch["action"][..., 1], values + 1)
    np.testing.assert_array_equal(batch["action"][..., 0], np.where(beyond, 0, values))
    np.testing.assert_array_equal(batch["observation.pad_mask"], (places >= 0)[:, :2])


def test_a_sample_keeps_its_goal_or_its_instruction(two):
    made = octo_batches(two, goal_relabeling="uniform", keep_image_prob=0.3, resize_size=8)
    batches = list(Loader(two, batch_size=64, order=mixed([1, 1], num_samples=2000), seed=1, **made))
    has_text, has_goal, named = [], [], []
    for batch in batches:
        text, goal = batch["task.pad_mask_dict.language_instruction"], batch["task.pad_mask_dict.image_primary"]
        assert (text ^ goal).all() and [bool(each) for each in batch["task.language_instruction"]] == text.tolist()
        assert (batch["task.image_primary"].any(axis=(1, 2, 3)) == goal).all()
        has_text += text.tolist()
        has_goal += goal.tolist()
        named += (batch["dataset_name"] == "arm").tolist()
    # the other dataset has episodes without an instruction, which keep their goal
    assert abs(np.array(has_goal)[np.array(named)].mean() - 0.3) < 0.05


def test_episodes_are_selected_by_their_instruction_and_their_largest_numbers(two):
    assert select_episodes(two, skip_unlabeled=True).num_episodes == 4
    assert select_episodes(two, max_action=110).num_episodes == 3
    statistics = dataset_statistics(two)
    scaled = octo_batches(two, statistics=statistics, resize_size=8)
    largest = np.abs(all_of(two, scaled)["action"]).max(axis=(1, 2, 3))
    episodes = np.repeat(np.arange(5), two.column("length"))
    for most in (0.5, 1.0, 1.4, 2.0):
        kept = select_episodes(two, max_action=most, statistics=statistics)
        expected = [number for number in range(5) if largest[episodes == number].max() <= most]
        assert kept.num_episodes == len(expected), most
    assert select_episodes(two, max_proprio=5).num_episodes == 2


def test_statistics_are_exact_and_pass_through_their_file(two, tmp_path):
    statistics = dataset_statistics(two)
    values = np.concatenate([episode["action"] for episode in two.stores[0]])
    np.testing.assert_allclose(statistics["arm"]["action"]["p01"], np.quantile(values, 0.01, axis=0), rtol=1e-6)
    assert (
        statistics["leg"]["action"]["q99"] == statistics["leg"]["action"]["p99"]
        and len(statistics["leg"]["action"]["std"]) == 2
    )
    statistics["arm"]["action"]["mask"] = np.array(MASK)
    save_statistics(tmp_path / "dataset_statistics.json", statistics)
    again = load_statistics(tmp_path / "dataset_statistics.json")
    assert again["arm"]["action"].pop("mask") == MASK and again["leg"] == statistics["leg"]
    (tmp_path / "one.json").write_text(json.dumps(again["arm"]))
    assert load_statistics(tmp_path / "one.json", "arm") == {"arm": again["arm"]}
    with pytest.raises(FormatError, match="without its name"):
        load_statistics(tmp_path / "one.json")
    (tmp_path / "two.json").write_text("[1]")
    with pytest.raises(FormatError, match="no statistics of datasets"):
        load_statistics(tmp_path / "two.json")
    (tmp_path / "two.json").write_text("{")
    with pytest.raises(FormatError, match="no JSON"):
        load_statistics(tmp_path / "two.json")


def test_statistics_that_lack_what_is_needed_say_so(two, tmp_path):
    arm, statistics = View(two.stores[0]), dataset_statistics(two)["arm"]
    action = {"mean": [0.0] * 4, "q01": [0.0] * 4, "q99": [1.0] * 4}
    for known, options, told in (
        ({"action": statistics["action"]}, {}, "none of 'proprio'"),
        ({"action": 3}, {}, "none of 'action'"),
        ({"action": action}, {"normalization": "normal"}, "no std of 'action'"),
        ({"action": action}, {}, "no min, max of 'action'"),
    ):
        with pytest.raises(WindowError, match=told):
            openvla_batches(arm, statistics={"arm": known}, **options)
    (tmp_path / "a.json").write_text('{"arm": {"action": 3}}')
    with pytest.raises(FormatError, match="no statistics of datasets"):
        load_statistics(tmp_path / "a.json")


def test_what_does_not_fit_is_refused(two, tmp_path):
    with pytest.raises(FormatError, match=r"no 'observation\.eye' in a trajectory. There are: .*front"):
        Standardize("a", {"primary": "eye"})(
            EpisodeData({"action": np.ones((2, 3)), "observation.front": np.ones((2, 1))})
        )
    with pytest.raises(FormatError, match="max_action_dim=2, and there are 3"):
        Standardize("a", max_action_dim=2)(EpisodeData({"action": np.ones((2, 3))}))
    with pytest.raises(FormatError, match=r"'action' is float64 \(2,\)"):
        Standardize("a")(EpisodeData({"action": np.ones(2)}))
    plain = stepwell.write_episodes(tmp_path / "plain.well", [{"action": np.ones((2, 3))}], workers=1)
    with pytest.raises(WindowError, match="was not standardised"):
        octo_batches(plain)
    with pytest.raises(WindowError, match=r"no statistics of dataset 'leg'\. There are: arm"):
        octo_batches(two, statistics=dataset_statistics(two.stores[0]))
    for wrong in (
        {"window_size": 0},
        {"goal_relabeling": "far"},
        {"max_goal_distance": 0},
        {"keep_image_prob": 0.5},
        {"normalization": "z"},
    ):
        with pytest.raises(WindowError, match="Allowed: "):
            octo_batches(two, **wrong)
    with pytest.raises(WindowError, match="is of 5 dimensions"):
        openvla_batches(two, absolute_action_mask={"arm": [True] * 5})


@needs_data
def test_episodes_that_a_transform_leaves_out_are_left_out_of_conversions(tmp_path):
    first = octo_transforms.without_first
    kept = stepwell.open(f"tfds://{DATA}", split="train", transform=first)
    whole = stepwell.open(f"tfds://{DATA}", split="train")
    assert [episode.length for episode in kept] == [episode.length for episode in whole][1:]
    image = {"observation.image": stepwell.Image((64, 64, 3), codec="png")}
    for features in ({}, image):
        path = tmp_path / f"{len(features)}.well"
        report = stepwell.convert(str(DATA), path, features, split="train", transform=first, workers=1)
        made = stepwell.open(path)
        assert [episode.length for episode in made] == [episode.length for episode in kept]
        assert report.num_steps == kept.num_steps
        np.testing.assert_array_equal(np.asarray(made[0]["action"]), np.asarray(whole[1]["action"]))
