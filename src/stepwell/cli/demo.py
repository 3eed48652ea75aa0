"""``stepwell demo``: PushT or a MuJoCo task is played and recorded, printed, streamed and drawn."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.cli.benching import stream
from stepwell.cli.sheets import Row, Tile, displayable, write_sheet
from stepwell.cli.terminal import print_folded
from stepwell.errors import MissingDependencyError, StoreExistsError
from stepwell.loader import Loader
from stepwell.order import random
from stepwell.progress import make_bar
from stepwell.schema import Array, Feature
from stepwell.sizes import counted
from stepwell.store import Store, create
from stepwell.store.info import make_table
from stepwell.windows import Field, View

__all__ = ["ScriptedPusher", "Simulator", "make_simulator", "run_demo"]

Floats = npt.NDArray[np.float64]

OUTLINE = np.array([(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], dtype=float)
CENTRE = np.array([0.0, 45.0])
INERTIA_PER_MASS = 3000.0
AGENT_RADIUS = 15.0
CLEARANCE = 6.0
SAFE_RADIUS = 108.0
WALLS = (22.0, 490.0)
PUSH_LENGTHS = np.array([3.0, 6.0, 12.0, 25.0, 50.0, 90.0])
PUSH_SUBSTEPS = 6
CONTACT_SPACING = 5.0
WALK_LEAD, PUSH_LEAD = 90.0, 45.0
ARRIVED = 5.0
MAX_PUSH_STEPS = 40


@dataclass(frozen=True, slots=True)
class Push:
    """One push in the world's frame: where the pusher starts, which way it goes, how far."""

    start: Floats
    direction: Floats
    length: float


class ScriptedPusher:
    """Choose actions for PushT from what its ``info`` says: positions of pusher, block and goal.

    Notes:
        One object plays one episode.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._noise = self._rng.choice([1.0, 4.0, 9.0])
        self._contacts, self._normals = contact_points()
        self._push: Push | None = None
        self._is_pushing = False
        self._steps_left = 0
        self._confusion = 0.0

    def act(self, info: dict[str, Any]) -> npt.NDArray[np.float32]:
        """Return the next action: float32 [2], the pixel position that the pusher is pulled to."""
        agent, block, goal = (np.asarray(info[key], float) for key in ("pos_agent", "block_pose", "goal_pose"))
        if self._push is None or self._steps_left <= 0:
            # a push that could not be finished was a bad idea: the next one is chosen with less conviction
            self._confusion = 0.0 if self._push is None else self._confusion + 10.0
            self._push, self._is_pushing, self._steps_left = self._plan(agent, block, goal), False, MAX_PUSH_STEPS
        self._steps_left -= 1
        push = self._push
        if not self._is_pushing and np.linalg.norm(agent - push.start) < ARRIVED:
            self._is_pushing = True
        end = push.start + push.direction * push.length
        if self._is_pushing and np.linalg.norm(agent - end) < ARRIVED / 2:
            self._push = None
        target = end if self._is_pushing else waypoint(agent, push.start, block)
        lead = limit(target - agent, PUSH_LEAD if self._is_pushing else WALK_LEAD)
        action = agent + lead + self._rng.normal(0.0, self._noise, 2)
        return np.clip(action, 0.0, 512.0).astype(np.float32)

    def _plan(self, agent: Floats, block: Floats, goal: Floats) -> Push:
        """Return the push that leaves the T closest to its goal, a long walk counted against it."""
        error = foreseen_errors(block, goal, self._contacts, self._normals)
        turn = rotation(block[2])
        starts = block[:2] + (self._contacts - self._normals * (AGENT_RADIUS + CLEARANCE)) @ turn.T
        outside = ((starts < WALLS[0]) | (starts > WALLS[1])).any(axis=1)
        walk = np.linalg.norm(starts - agent, axis=1)
        whim = self._rng.normal(0.0, 1.0, error.shape) * self._confusion
        score = error + whim + (0.005 * walk + 1e6 * outside)[:, None]
        contact, length = np.unravel_index(int(np.argmin(score)), score.shape)
        direction = turn @ self._normals[contact]
        return Push(starts[contact], direction, float(PUSH_LENGTHS[length]) + CLEARANCE)


def contact_points() -> tuple[Floats, Floats]:
    """Return where the pusher can touch the T and the inward normals there, both [N, 2] in the T's frame."""
    points, normals = [], []
    for start, end in zip(OUTLINE, np.roll(OUTLINE, -1, axis=0), strict=True):
        along = (end - start) / np.linalg.norm(end - start)
        inward = np.array([-along[1], along[0]])
        for distance in np.arange(4.0, np.linalg.norm(end - start) - 3.0, CONTACT_SPACING):
            point = start + along * distance
            if distance_to_outline(point - inward * AGENT_RADIUS) > AGENT_RADIUS - 0.5:
                points.append(point)
                normals.append(inward)
    return np.array(points), np.array(normals)


def foreseen_errors(block: Floats, goal: Floats, contacts: Floats, normals: Floats) -> Floats:
    """Return how far the T's corners are from their goals after each push: float64 [contacts, lengths], mean pixels.

    An impulse j along the normal n at r from the centre of gravity gives velocity n j and spin (r x n) j / inertia; the
    contact moves as far as the pusher does, which fixes j. The pusher keeps its direction while the T turns away.
    """
    goal_corners = goal[:2] + OUTLINE @ rotation(goal[2]).T
    turn = rotation(block[2])
    world_normals = normals @ turn.T
    errors = np.empty((len(contacts), len(PUSH_LENGTHS)))
    for column, length in enumerate(PUSH_LENGTHS):
        angle = np.full(len(contacts), block[2])
        centre = np.tile(block[:2] + turn @ CENTRE, (len(contacts), 1))
        touch = block[:2] + contacts @ turn.T
        for _ in range(PUSH_SUBSTEPS):
            spun = rotate(normals, angle)
            advance = (world_normals * spun).sum(axis=1) * length / PUSH_SUBSTEPS
            arm = touch - centre
            lever = arm[:, 0] * spun[:, 1] - arm[:, 1] * spun[:, 0]
            impulse = np.maximum(advance, 0.0) / (1.0 + lever**2 / INERTIA_PER_MASS)
            centre += spun * impulse[:, None]
            angle += lever * impulse / INERTIA_PER_MASS
            touch += world_normals * (length / PUSH_SUBSTEPS)
        corners = centre[:, None] + rotate(np.broadcast_to(OUTLINE - CENTRE, (len(contacts), 8, 2)), angle[:, None])
        errors[:, column] = np.linalg.norm(corners - goal_corners, axis=2).mean(axis=1)
    return errors


def waypoint(agent: Floats, target: Floats, block: Floats) -> Floats:
    """Return where to walk next to reach ``target`` without touching the T: straight, or along a circle about it."""
    turn = rotation(block[2])
    centre = block[:2] + turn @ CENTRE
    if is_free(agent, target, block):
        return target
    here, there = agent - centre, target - centre
    if np.linalg.norm(here) < SAFE_RADIUS - 12.0:
        return inside_walls(centre + here / np.linalg.norm(here) * SAFE_RADIUS)
    start, end = np.arctan2(here[1], here[0]), np.arctan2(there[1], there[0])
    difference = (end - start + np.pi) % (2 * np.pi) - np.pi
    angle = start + np.clip(difference, -0.8, 0.8)
    return inside_walls(centre + SAFE_RADIUS * np.array([np.cos(angle), np.sin(angle)]))


def inside_walls(point: Floats) -> Floats:
    """Return the nearest point that the pusher can reach."""
    return np.asarray(np.clip(point, *WALLS))


def is_free(agent: Floats, target: Floats, block: Floats) -> bool:
    """Return whether the straight walk keeps the pusher off the T."""
    back = rotation(-block[2])
    walk = agent + np.linspace(0.0, 1.0, 25)[:, None] * (target - agent)
    distances = distance_to_outline((walk - block[:2]) @ back.T)
    return bool((distances > AGENT_RADIUS + 1.0).all() or (distances >= min(distances[0], AGENT_RADIUS + 1.0)).all())


def distance_to_outline(points: Floats) -> Floats:
    """Return the distance of points [..., 2] in the T's frame from its edges; 0 inside it."""
    starts, ends = OUTLINE, np.roll(OUTLINE, -1, axis=0)
    along = ends - starts
    offsets = points[..., None, :] - starts
    share = np.clip((offsets * along).sum(-1) / (along**2).sum(-1), 0.0, 1.0)
    distances = np.linalg.norm(offsets - share[..., None] * along, axis=-1).min(axis=-1)
    x, y = np.abs(points[..., 0]), points[..., 1]
    is_inside = ((x < 60) & (y > 0) & (y < 30)) | ((x < 15) & (y >= 30) & (y < 120))
    return np.where(is_inside, 0.0, distances)


def rotation(angle: float) -> Floats:
    """Return the 2x2 matrix that turns a column vector by ``angle`` radians."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def rotate(vectors: Floats, angles: Floats) -> Floats:
    """Return vectors [..., 2] turned by angles [...], radians."""
    cosine, sine = np.cos(angles), np.sin(angles)
    x, y = vectors[..., 0], vectors[..., 1]
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def limit(vector: Floats, length: float) -> Floats:
    """Return the vector, shortened to ``length`` when it is longer."""
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))


# info of the last step -> next action
Policy = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Simulator:
    """An environment, who plays it, and what the demo needs to know about it."""

    name: str
    env: Any
    make_policy: Callable[[int], Policy]
    infos: Mapping[str, Feature]
    episode_infos: tuple[str, ...]
    camera: str
    state: str
    fps: float
    canvas_size: float | None


def make_simulator() -> Simulator:
    """Return PushT with its scripted pusher, else MuJoCo's hopper on a swinging gait."""
    # a machine without a screen or sound card must be able to draw
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
    except ImportError:
        raise MissingDependencyError.of("gymnasium", "demo") from None
    try:
        import gym_pusht  # noqa: F401 - importing it registers the environment
    except ImportError:
        return _make_hopper(gymnasium)
    return _make_pusht(gymnasium)


def _make_pusht(gymnasium: Any) -> Simulator:
    return Simulator(
        name="PushT",
        env=gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels_agent_pos"),
        make_policy=lambda seed: ScriptedPusher(seed).act,
        infos={"block_pose": Array(3, "float64", names=("x", "y", "angle")), "coverage": Array((), "float64")},
        episode_infos=("is_success", "coverage"),
        camera="observation.pixels",
        state="observation.agent_pos",
        fps=10,
        canvas_size=512.0,
    )


def _make_hopper(gymnasium: Any) -> Simulator:
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        env = gymnasium.make("Hopper-v5", render_mode="rgb_array", width=96, height=96, max_episode_steps=300)
    except ImportError:
        raise MissingDependencyError.of("neither gym-pusht nor mujoco", "demo") from None
    env = gymnasium.wrappers.AddRenderObservation(env, render_only=False, render_key="pixels", obs_key="state")
    return Simulator(
        name="Hopper",
        env=env,
        make_policy=_make_gait,
        infos={},
        episode_infos=("x_position",),
        camera="observation.pixels",
        state="observation.state",
        fps=125,
        canvas_size=None,
    )


def _make_gait(seed: int) -> Policy:
    """Return a swing of the hopper's three joints with its own rhythm, so that it falls at its own time."""
    rng = np.random.default_rng(seed)
    phase, rhythm, strength = rng.uniform(0, 6.28, 3), rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.6)
    beats = iter(range(10**9))

    def act(info: dict[str, Any]) -> Any:
        return (strength * np.sin(phase + rhythm * next(beats)) + rng.normal(0, 0.05, 3)).clip(-1, 1).astype(np.float32)

    return act


BATCH_SIZE, EPOCHS = 64, 2
NUM_ACTIONS = 16
SHEET_WINDOWS = 6
SHEET_OFFSETS = (-1, 0, 5, 10, 15)


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the four parts of the demo."""
    simulator = make_simulator()
    path = arguments.out / f"{simulator.name.lower()}.well"
    _remove_last_run(path)

    print(f"1. Record {counted(arguments.episodes, 'episode')} of {simulator.name}, played by a script", flush=True)
    store = record(simulator, path, arguments.episodes, arguments.seed, arguments.image)

    print("\n2. What the store holds\n")
    print_folded(make_table(store))

    windows = f"2 observations and {NUM_ACTIONS} actions a window, batch {BATCH_SIZE}, random order, {EPOCHS} epochs"
    print(f"\n3. Stream windows: {windows}\n", flush=True)
    print_speed(store, simulator, arguments.seed)
    if arguments.image != "raw":
        print(f"   Every image was decoded from {arguments.image}. With --image raw there is nothing to decode.")

    sheet = arguments.out / "windows.png"
    draw_windows(store, simulator, sheet, arguments.seed)
    print(f"\n4. Look at some windows: {sheet}\n")
    command = _own_command()
    print(f"Next:  {command} info {path}\n       {command} ls {path}\n       {command} show {path} 0 --out episode.png")
    return 0


def record(simulator: Simulator, path: Path, num_episodes: int, seed: int, codec: Any) -> Store:
    """Return a new store with episodes of the simulator."""
    options: dict[str, Any] = {"quality": 95} if codec == "jpeg" else {}
    # imports gymnasium, which a bare installation does not have: `make_simulator` has said so by now
    from stepwell.recorders import EpisodeRecorder, schema_of

    schema = schema_of(simulator.env, codec=codec, infos=simulator.infos, **options)
    store = create(path, schema, fps=simulator.fps, metadata={"simulator": simulator.name, "seed": seed})
    begun = time.perf_counter()
    with (
        EpisodeRecorder(simulator.env, store, episode_infos=simulator.episode_infos) as env,
        make_bar(num_episodes, "episodes", "recording") as bar,
    ):
        for number in range(num_episodes):
            play_episode(env, simulator.make_policy(seed + number), seed + number)
            bar.update(1)
    store.refresh()
    seconds = time.perf_counter() - begun
    won = sum(bool(store.episodes.metadata(i).get("is_success")) for i in range(store.num_episodes))
    success = f", {won} of them successful" if "is_success" in simulator.episode_infos else ""
    print(
        f"   {counted(store.num_episodes, 'episode')}{success}; {counted(store.num_steps, 'step')} in {seconds:.1f} s"
    )
    return store


def play_episode(env: Any, policy: Any, seed: int) -> None:
    """Play one episode to its end."""
    _, info = env.reset(seed=seed)
    is_over = False
    while not is_over:
        _, _, terminated, truncated, info = env.step(policy(info))
        is_over = terminated or truncated


def print_speed(store: Store, simulator: Simulator, seed: int) -> None:
    """Stream the windows and print how fast that was."""
    fields = {"image": Field(simulator.camera, [-1, 0]), "action": Field("action", range(NUM_ACTIONS))}
    loader = Loader(View(store), fields, batch_size=BATCH_SIZE, order=random(seed=seed), epochs=EPOCHS)
    with make_bar(EPOCHS * store.num_steps, "windows", "streaming") as bar:
        report = stream(loader, bar)
    print(f"   {report}")


def draw_windows(store: Store, simulator: Simulator, path: Path, seed: int) -> None:
    """Write a contact sheet of a few windows: what was seen, the actions that followed, and what came of them."""
    fields = {
        "image": Field(simulator.camera, SHEET_OFFSETS),
        "state": simulator.state,
        "action": Field("action", range(NUM_ACTIONS)),
        "reward": "reward",
        "episode_index": "episode_index",
        "step_index": "step_index",
    }
    loader = Loader(View(store), fields, batch_size=min(256, store.num_steps), order=random(seed=seed))
    batch = next(iter(loader))
    rows = [_window_row(store, simulator, batch, sample) for sample in choose_windows(batch)]
    title = f"{path.parent.name}/{store.path.name}: windows of {simulator.name}"
    about = "Each row is one sample of a batch: two observations, and what the 16 actions led to."
    dots = " Dots: where the actions pull the pusher, yellow to red." if simulator.canvas_size else ""
    write_sheet(path, rows, title=title, subtitle=about + dots)


def choose_windows(batch: Mapping[str, Any]) -> list[int]:
    """Return samples of a batch worth a look: each of another episode, the last one cut by its episode's end."""
    _, firsts = np.unique(batch["episode_index"], return_index=True)
    is_cut = batch["action_is_pad"].any(axis=1)
    inner = sorted(int(sample) for sample in firsts if not is_cut[sample])[: SHEET_WINDOWS - 1]
    cut = [int(sample) for sample in np.flatnonzero(is_cut)]
    return inner + cut[:1]


def _window_row(store: Store, simulator: Simulator, batch: Mapping[str, Any], sample: int) -> Row:
    episode, step = int(batch["episode_index"][sample]), int(batch["step_index"][sample])
    is_success = store.episodes.metadata(episode).get("is_success")
    ending = "" if is_success is None else "   ends in success" if is_success else "   does not succeed"
    reward = float(batch["reward"][sample])
    caption = f"episode {episode}   step {step} of {store.episodes.length[episode]}   reward {reward:.2f}{ending}"
    tiles = []
    for column, offset in enumerate(SHEET_OFFSETS):
        is_pad = bool(batch["image_is_pad"][sample, column])
        label = f"observation {offset:+d}" + (", padding" if is_pad else "") if offset else "observation 0 and actions"
        path = _action_path(simulator, batch, sample) if offset == 0 else None
        tiles.append(Tile(displayable(batch["image"][sample, column]), label, path, is_faded=is_pad))
    return Row(tiles, caption)


def _action_path(simulator: Simulator, batch: Mapping[str, Any], sample: int) -> Any:
    """Return where the window's actions lead, as fractions of the image; None when actions are no positions."""
    if simulator.canvas_size is None:
        return None
    actions: Sequence[Any] = batch["action"][sample][~batch["action_is_pad"][sample]]
    return np.concatenate([batch["state"][sample][None], actions]) / simulator.canvas_size


def _own_command() -> str:
    """Return what to type to run stepwell again: its path while it is not on the search path."""
    word = Path(sys.argv[0])
    return str(word) if word.name == "stepwell" and shutil.which("stepwell") != str(word) else "stepwell"


def _remove_last_run(path: Path) -> None:
    if not path.exists():
        return
    if not (path / "store.json").is_file():
        raise StoreExistsError(f"{path} is there and is no store. Move it away, or choose another --out.")
    shutil.rmtree(path)
