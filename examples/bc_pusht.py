"""Behaviour cloning of a recorded PushT store: two observations in, the next sixteen actions out.

    stepwell demo --episodes 200 --out output                  # records output/pusht.well
    python examples/bc_pusht.py --store output/pusht.well

Without ``--store`` it records one itself. The store holds images, too; this policy sees the positions of the pusher and
of the T, so that it trains in a minute on one core. What is not needed is not read: a window is a few hundred bytes.

The loss is that of whole chunks, on episodes that were held out: `View.split` hashes where an episode comes from, so
that it stays on its side when the store grows. With gym-pusht installed the policy is also played: it executes the
first eight actions of a chunk, then looks again.

Sources: C. Chi et al., Diffusion policy, 2023 (the task, the chunks); Y. Lipman et al., Flow matching for generative
modeling, 2023 (what the policy is).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import stepwell

CHUNK, EXECUTED = 16, 8
CANVAS = 512.0
SCALE = CANVAS / 4
FIELDS = {
    "agent": stepwell.Field("observation.agent_pos", [-1, 0]),
    # what `info` said of step t - 1 is where the T is when action t is chosen
    "block": stepwell.Field("info.block_pose", [-2, -1]),
    "action": stepwell.Field("action", range(CHUNK)),
}


class Policy(nn.Module):
    """A flow from noise to a chunk of actions, given two observations.

    There are many good ways round the T, and their mean goes through it. So the network learns the velocity that turns
    noise into one of them, and a chunk is drawn by following it.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        sizes = (2 * 6 + CHUNK * 2 + 3, hidden, hidden, hidden)
        layers = [
            part
            for inputs, outputs in pairwise(sizes)
            for part in (nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU())
        ]
        self.net = nn.Sequential(*layers, nn.Linear(hidden, CHUNK * 2))

    def forward(self, agent: Tensor, block: Tensor, actions: Tensor, time: Tensor) -> Tensor:
        """Return velocities [B, 16, 2].

        Args:
            agent: float32 [B, 2, 2], positions of the pusher in pixels, the newest last.
            block: float32 [B, 2, 3], x, y and angle of the T.
            actions: float32 [B, 16, 2], on the way from noise (time 0) to actions (time 1), in units of `SCALE` pixels
                from the pusher.
            time: float32 [B, 1].
        """
        angle = block[..., 2:]
        positions = torch.cat([agent, block[..., :2]], dim=-1) / (CANVAS / 2) - 1
        seen = torch.cat([positions, angle.sin(), angle.cos()], dim=-1)
        clock = torch.cat([time, (torch.pi * time).sin(), (torch.pi * time).cos()], dim=-1)
        return self.net(torch.cat([seen.flatten(1), actions.flatten(1), clock], dim=-1)).unflatten(1, (CHUNK, 2))

    @torch.no_grad()
    def act(self, agent: Tensor, block: Tensor, num_moments: int = 10) -> Tensor:
        """Return chunks of actions [B, 16, 2] in pixels, drawn at random."""
        actions = torch.randn(len(agent), CHUNK, 2)
        for moment in torch.arange(num_moments) / num_moments:
            actions += self(agent, block, actions, moment.expand(len(agent), 1)) / num_moments
        return (agent[:, -1:] + actions * SCALE).clamp(0, CANVAS)


def flow_loss(policy: Policy, batch: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
    """Return the mean squared error of the velocities, at a random time each, where there are actions."""
    agent, block = batch["agent"].float(), batch["block"].float()
    actions = (batch["action"].float() - agent[:, -1:]) / SCALE
    noise = torch.randn(actions.shape, generator=generator)
    time = torch.rand(len(actions), 1, generator=generator)
    between = torch.lerp(noise, actions, time[..., None])
    errors = functional.mse_loss(policy(agent, block, between, time), actions - noise, reduction="none").mean(-1)
    # chunks reach beyond the end of their episode; what is there only repeats the last action
    is_real = ~batch["action_is_pad"]
    return (errors * is_real).sum() / is_real.sum()


@torch.no_grad()
def validate(policy: Policy, view: stepwell.View) -> float:
    """Return the loss over all steps of a view, with the same noise at every call."""
    generator = torch.Generator().manual_seed(0)
    loader = stepwell.Loader(view, FIELDS, batch_size=512, to="torch")
    return float(np.mean([flow_loss(policy, batch, generator).item() for batch in loader]))


def distance(policy: Policy, view: stepwell.View) -> float:
    """Return how far from the recorded actions those of the policy are, in pixels, over all steps of a view."""
    total, count = 0.0, 0
    for batch in stepwell.Loader(view, FIELDS, batch_size=512, to="torch"):
        apart = (policy.act(batch["agent"].float(), batch["block"].float()) - batch["action"]).norm(dim=-1)
        is_real = ~batch["action_is_pad"]
        total, count = total + float(apart[is_real].sum()), count + int(is_real.sum())
    return total / count


def train(
    policy: Policy, training: stepwell.View, held_out: stepwell.View, settings: argparse.Namespace
) -> list[dict[str, float]]:
    """Train a policy; returns the losses after each epoch, the first one before any training."""
    generator = torch.Generator().manual_seed(settings.seed)
    loader = stepwell.Loader(
        training, FIELDS, batch_size=settings.batch_size, order="random", seed=settings.seed, to="torch"
    )
    optimiser = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, settings.epochs * len(loader)))
    history = [{"epoch": 0, "training": float("nan"), "held_out": validate(policy, held_out)}]
    print(f"epoch    0                   held out {history[0]['held_out']:.4f}")
    for epoch in range(1, settings.epochs + 1):
        losses = []
        for batch in loader:
            loss = flow_loss(policy, batch, generator)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        history.append({"epoch": epoch, "training": float(np.mean(losses)), "held_out": validate(policy, held_out)})
        if epoch % max(1, settings.epochs // 10) == 0:
            print(f"epoch {epoch:4}  training {history[-1]['training']:.4f}  held out {history[-1]['held_out']:.4f}")
    return history


def evaluate(policy: Policy, num_episodes: int) -> float:
    """Return the largest share of the goal that the T covered, averaged over episodes in the simulator."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    import gym_pusht  # noqa: F401 - importing it registers the environment
    import gymnasium

    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="state", max_episode_steps=300)
    best = [play(policy, env, seed=10_000 + number) for number in range(num_episodes)]
    env.close()
    return float(np.mean(best))


@torch.no_grad()
def play(policy: Policy, env: Any, seed: int) -> float:
    """Return the largest coverage of one episode."""
    state, _ = env.reset(seed=seed)
    states, best, is_over = [state, state], 0.0, False
    while not is_over:
        inputs = torch.as_tensor(np.stack(states[-2:]), dtype=torch.float32)[None]
        chunk = policy.act(inputs[..., :2], inputs[..., 2:])[0]
        for action in chunk[:EXECUTED].numpy():
            state, _, terminated, truncated, info = env.step(action)
            states.append(state)
            best = max(best, info["coverage"])
            is_over = terminated or truncated
            if is_over:
                break
    return best


def record(folder: Path, num_episodes: int) -> Path:
    """Return a store of PushT, played by the script of ``stepwell demo``."""
    command = [sys.executable, "-m", "stepwell", "demo", "--episodes", str(num_episodes), "--out", str(folder)]
    subprocess.run(command, check=True)
    return folder / "pusht.well"


def draw_losses(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Draw both losses over the epochs, without that of the untrained policy, which is far above."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for key, label in (("training", "training"), ("held_out", "held-out episodes")):
        axes.plot([row["epoch"] for row in history[1:]], [row[key] for row in history[1:]], label=label)
    axes.set(xlabel="epoch", ylabel="loss: error of the velocity")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=None, help="a store of PushT; default: one is recorded")
    parser.add_argument("--episodes", type=int, default=200, help="to record where there is no --store")
    parser.add_argument("--epochs", type=int, default=100, help="passes over the training episodes")
    parser.add_argument("--batch-size", type=int, default=256, help="windows an update")
    parser.add_argument("--hidden", type=int, default=384, help="units of each of the three hidden layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of AdamW, falling to 0 along a cosine")
    parser.add_argument("--evaluation-episodes", type=int, default=50, help="to play; 0: no simulator is needed")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("output/bc"), help="folder for the policy and what it reached")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and play, then write what was reached."""
    settings = parse(arguments)
    torch.set_num_threads(1)
    settings.out.mkdir(parents=True, exist_ok=True)
    store = stepwell.open(settings.store or record(settings.out, settings.episodes), mode="r")
    print(store)
    training, held_out = stepwell.View(store).split(0.9, 0.1, seed=settings.seed)
    if not held_out.num_episodes:
        sys.exit(f"no episode of {store.num_episodes} was held out. Record some more, or take another --seed.")
    torch.manual_seed(settings.seed)
    policy = Policy(settings.hidden)
    untrained = copy.deepcopy(policy)
    begun = time.perf_counter()
    history = train(policy, training, held_out, settings)
    summary = {
        "history": history,
        "seconds": time.perf_counter() - begun,
        "distance": distance(policy, held_out),
        "untrained_distance": distance(untrained, held_out),
        "settings": vars(settings),
    }
    print(
        f"{held_out.num_episodes} of {store.num_episodes} episodes held out: {summary['distance']:.1f} pixels from "
        f"their actions, untrained {summary['untrained_distance']:.1f}; {summary['seconds']:.0f} s of training"
    )
    if settings.evaluation_episodes:
        for key, player in (("coverage", policy), ("untrained_coverage", untrained)):
            summary[key] = evaluate(player, settings.evaluation_episodes)
        print(f"largest coverage {summary['coverage']:.2f}, untrained {summary['untrained_coverage']:.2f}")
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=1, default=str))
    draw_losses(settings.out / "loss.png", history)
    torch.save(policy.state_dict(), settings.out / "policy.pt")


if __name__ == "__main__":
    main()
