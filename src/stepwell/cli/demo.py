"""``stepwell demo``: record a real simulator, look at the store, stream windows of it, draw some of them."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.sheets import Row, Tile, displayable, write_sheet
from stepwell.cli.simulators import Simulator, make_simulator
from stepwell.cli.streaming import stream
from stepwell.errors import StoreExistsError
from stepwell.loader import Loader
from stepwell.order import random
from stepwell.progress import make_bar
from stepwell.sizes import counted
from stepwell.store import Store, create
from stepwell.store.info import make_table
from stepwell.windows import Field, View

__all__ = ["run_demo"]

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
    print(make_table(store))

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
