"""DQN on an Atari game: screens are stored once and without loss, stacks of four are made when they are sampled.

    pip install "ale-py" "opencv-python-headless"
    python examples/dqn_atari.py                                        # Pong, 200,000 frames
    python examples/dqn_atari.py --game Breakout --codec raw --frames 1_000_000

A transition is two stacks of four screens of 84 x 84. Kept as such it weighs 8 x 7,056 bytes; here each screen is one
row of the store, compressed, and the eight are five neighbours. A batch reads a window of five (with n-step returns
4 + n) and hands it over as two views.

One process, so that the run is the same for the same seed. At the end it says how many samples a second the replay
gives, and what a transition weighs on the disk.

Sources: V. Mnih et al., Human-level control through deep reinforcement learning, 2015; H. van Hasselt et al., Deep
reinforcement learning with double Q-learning, 2016; M. Machado et al., Revisiting the Arcade Learning Environment, 2018
(sticky actions).
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import stepwell
from stepwell.recorders import EpisodeRecorder, schema_of
from stepwell.replay import MinSize

FRAME_SKIP, STACK, SIDE = 4, 4, 84


def make_screens(game: str) -> gymnasium.Env[Any, Any]:
    """Return a game that shows one grey screen, uint8 [84, 84], a step.

    Args:
        game: a name of ale-py's, or ``module:Name-v0`` of an environment that shows such screens itself.
    """
    if ":" in game:
        return gymnasium.make(game)
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1)
    return gymnasium.wrappers.AtariPreprocessing(env, frame_skip=FRAME_SKIP, screen_size=SIDE)


def make_env(game: str, store: stepwell.Store) -> gymnasium.Env[Any, Any]:
    """Return a game that shows stacks, uint8 [4, 84, 84]; the recorder lies below them and stores single screens."""
    return gymnasium.wrappers.FrameStackObservation(EpisodeRecorder(make_screens(game), store), STACK)


class QNetwork(nn.Module):
    """Convolutions from a stack of screens to a value an action."""

    def __init__(self, num_actions: int, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(STACK, width, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 49, 16 * width),
            nn.ReLU(),
            nn.Linear(16 * width, num_actions),
        )

    def forward(self, stacks: Tensor) -> Tensor:
        """Return values [B, A] of stacks uint8 [B, 4, 84, 84]."""
        return self.net(stacks.float() / 255)


class Agent:
    """The networks and how they learn from a batch."""

    def __init__(self, num_actions: int, settings: argparse.Namespace) -> None:
        self.net = QNetwork(num_actions, settings.width)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=settings.learning_rate, eps=1.5e-4)
        self.target_every = settings.target_every
        self.num_updates = 0

    def update(self, batch: Mapping[str, Tensor]) -> float:
        """Learn from one batch; returns the loss."""
        with torch.no_grad():
            best = self.net(batch["next_observation"]).argmax(1, keepdim=True)
            next_value = self.target(batch["next_observation"]).gather(1, best).squeeze(1)
            goal = batch["reward"] + batch["discount"] * next_value
        value = self.net(batch["observation"]).gather(1, batch["action"][:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(value, goal)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.num_updates += 1
        if self.num_updates % self.target_every == 0:
            self.target.load_state_dict(self.net.state_dict())
        return loss.item()

    @torch.no_grad()
    def values(self, stacks: np.ndarray) -> np.ndarray:
        """Return values [B, A] of stacks [B, 4, 84, 84]."""
        return self.net(torch.as_tensor(stacks)).numpy()


class Player:
    """Plays a game with some random actions and keeps the returns of its episodes."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        self.env = gymnasium.wrappers.RecordEpisodeStatistics(env)
        self.rng = np.random.default_rng(seed)
        self.returns: list[float] = []
        self.stack, _ = self.env.reset(seed=seed)

    def step(self, agent: Agent, randomness: float) -> bool:
        """Take one step; returns whether it ended an episode."""
        is_random = self.rng.random() < randomness
        action = self.rng.integers(self.env.action_space.n) if is_random else agent.values(self.stack[None]).argmax()
        self.stack, _, terminated, truncated, info = self.env.step(int(action))
        has_ended = terminated or truncated
        if has_ended:
            self.returns.append(float(info["episode"]["r"]))
            self.stack, _ = self.env.reset()
        return has_ended


def train(agent: Agent, ring: stepwell.Store, settings: argparse.Namespace) -> dict[str, Any]:
    """Play and learn for the frames of the settings; returns what happened."""
    player = Player(make_env(settings.game, ring), settings.seed)
    targets = stepwell.transition_fields(n_step=settings.n_step, discount=settings.discount, stack=STACK)
    fields, transform = targets
    # scores of games differ a thousandfold: learn their signs, store them as they are
    fields["reward"] = stepwell.Field("reward", fields["reward"].offsets, transform=np.sign)
    # an item is made when the steps are there that its transition reaches
    table = stepwell.Table(
        ring,
        max_size=settings.capacity,
        limiter=MinSize(settings.learning_starts),
        pattern=targets.pattern,
        seed=settings.seed,
    )
    # in one process there is nobody to wait for: what the table does not give now is an error
    loader = stepwell.ReplayLoader(
        table, fields, batch_size=settings.batch_size, transform=transform, seed=settings.seed, to="torch", timeout=0
    )
    episodes, losses = [], []
    begun = time.perf_counter()
    for step in range(1, settings.frames // FRAME_SKIP + 1):
        randomness = max(0.05, 1 - step / settings.exploration_steps)
        if player.step(agent, randomness):
            episodes.append({"frames": step * FRAME_SKIP, "return": player.returns[-1]})
            print(f"{step * FRAME_SKIP:9,} frames  return {player.returns[-1]:6.1f}", flush=True)
        if step >= settings.learning_starts + settings.n_step and step % settings.train_every == 0:
            losses.append(agent.update(next(loader)))
    seconds = time.perf_counter() - begun
    player.env.close()
    return {"episodes": episodes, "losses": losses, "seconds": seconds, **measure(loader, ring, settings)}


def measure(loader: stepwell.ReplayLoader, ring: stepwell.Store, settings: argparse.Namespace) -> dict[str, float]:
    """Return how fast the replay gives samples, and what a transition weighs."""
    begun = time.perf_counter()
    for _ in range(settings.timed_batches):
        next(loader)
    seconds = time.perf_counter() - begun
    ring.refresh()
    on_disk = sum(file.stat().st_size for file in Path(ring.path).rglob("*") if file.is_file())
    return {
        "samples_per_second": settings.timed_batches * settings.batch_size / seconds,
        "bytes_per_transition": on_disk / ring.num_steps,
        "steps_stored": ring.num_steps,
    }


def draw_returns(path: Path, episodes: Sequence[Mapping[str, float]], game: str) -> None:
    """Draw the returns of the episodes that were played while learning."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    axes.plot([row["frames"] for row in episodes], [row["return"] for row in episodes], ".-")
    axes.set(xlabel=f"frames of {game}", ylabel="return of an episode")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--game", default="Pong", help="of ale-py, as in ALE/Pong-v5; or module:Name-v0")
    parser.add_argument("--frames", type=int, default=200_000, help="to play, four a step")
    parser.add_argument("--codec", default="zstd", choices=["zstd", "png", "lz4", "raw"], help="how a screen is stored")
    parser.add_argument("--capacity", type=int, default=100_000, help="steps that the ring holds")
    parser.add_argument("--learning-starts", type=int, default=1000, help="transitions before the first update")
    parser.add_argument("--exploration-steps", type=int, default=10_000, help="in which random actions fall to 5 %%")
    parser.add_argument("--train-every", type=int, default=2, help="steps an update")
    parser.add_argument("--batch-size", type=int, default=32, help="transitions an update")
    parser.add_argument("--n-step", type=int, default=3, help="rewards of a transition")
    parser.add_argument("--discount", type=float, default=0.99, help="of a step")
    parser.add_argument("--target-every", type=int, default=500, help="updates between two copies of the network")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4, help="of Adam")
    parser.add_argument("--timed-batches", type=int, default=300, help="to read for the samples a second")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("output/dqn"), help="folder of summary.json and curve.png")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, then write what was reached."""
    settings = parse(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    screens = make_screens(settings.game)
    schema = schema_of(screens, codec=settings.codec)
    ring = stepwell.create(":memory:", schema, capacity=settings.capacity)
    agent = Agent(int(screens.action_space.n), settings)
    summary = train(agent, ring, settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "summary.json").write_text(json.dumps({**summary, "settings": vars(settings)}, default=str))
    draw_returns(settings.out / "curve.png", summary["episodes"], settings.game)
    print(
        f"{summary['samples_per_second']:,.0f} samples/s; {summary['bytes_per_transition']:,.0f} bytes a transition "
        f"({settings.codec}; one screen {SIDE * SIDE:,}, two stacks {2 * STACK * SIDE * SIDE:,})"
    )


if __name__ == "__main__":
    main()
