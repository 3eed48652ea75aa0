"""DQN of Stable-Baselines3 over a ring: what it plays is a store, and its batches may be drawn by priority.

    pip install "stable-baselines3"
    python examples/sb3_dqn.py                                          # CartPole, 30,000 steps
    python examples/sb3_dqn.py --prioritized --n-steps 3
    python examples/sb3_dqn.py --env LunarLander-v3 --envs 8 --steps 200_000

With `stepwell.sb3.ReplayBuffer` nothing else changes: the same seed learns the same weights as with Stable-Baselines3's
own buffer. The ring lies in the folder of the run, and is read like any store afterwards, or meanwhile by others.

Stable-Baselines3 has no prioritised replay. `PrioritizedDQN` is its DQN with one method of its own: the loss is
weighted, and what it was goes back to the table.

Sources: V. Mnih et al., Human-level control through deep reinforcement learning, 2015; T. Schaul et al., Prioritized
experience replay, 2016.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch.nn import functional

import stepwell
from stepwell.sb3 import PrioritizedReplayBuffer, ReplayBuffer


class PrioritizedDQN(DQN):  # type: ignore[misc]
    """DQN that learns from a `PrioritizedReplayBuffer`."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make so many updates of the network."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                following = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
                # of n steps; a discount of 0 where the episode came to an end
                targets = batch.rewards + batch.discounts * following
            values = self.q_net(batch.observations).gather(1, batch.actions)
            losses = functional.smooth_l1_loss(values, targets, reduction="none")
            self.policy.optimizer.zero_grad()
            (batch.weights * losses).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(batch.indices, values - targets)
        self._n_updates += gradient_steps


def train(settings: argparse.Namespace, ring: Path) -> dict[str, Any]:
    """Learn and return what was reached."""
    env = make_vec_env(settings.env, n_envs=settings.envs, seed=settings.seed)
    options: dict[str, Any] = {"path": ring}
    if settings.prioritized:
        options |= {"n_steps": settings.n_steps, "gamma": settings.discount, "seed": settings.seed}
    agent = (PrioritizedDQN if settings.prioritized else DQN)(
        "MlpPolicy", env, seed=settings.seed, device="cpu", gamma=settings.discount, buffer_size=settings.capacity,
        replay_buffer_class=PrioritizedReplayBuffer if settings.prioritized else ReplayBuffer,
        replay_buffer_kwargs=options, learning_rate=1e-3, learning_starts=settings.learning_starts, batch_size=64,
        train_freq=max(1, 16 // settings.envs), gradient_steps=8, target_update_interval=200,
        exploration_fraction=0.3, policy_kwargs={"net_arch": [settings.width] * 2},
    )  # fmt: skip
    begun = time.perf_counter()
    agent.learn(settings.steps)
    seconds = time.perf_counter() - begun
    # what waits for the step after it is written, too
    agent.replay_buffer.close()
    mean, _ = evaluate_policy(agent, make_vec_env(settings.env, seed=settings.seed + 1000), n_eval_episodes=10)
    return {"evaluated_return": float(mean), "seconds": seconds}


def read(ring: Path) -> dict[str, Any]:
    """Return what the ring says of the run, without its buffer: returns of episodes, in the order of their ends."""
    store = stepwell.open(ring, mode="r")
    returns: dict[int, float] = {}
    ended = []
    for episode in store:
        # a ring cuts long episodes: the pieces of one have the same origin
        origin = int(store.episodes.origin[episode.index])
        returns[origin] = returns.get(origin, 0.0) + float(episode["reward"].sum())
        if episode.terminated or episode.truncated:
            ended.append(origin)
    return {"steps_stored": store.num_steps, "returns": [returns[origin] for origin in ended]}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--env", default="CartPole-v1", help="of Gymnasium's, with discrete actions")
    parser.add_argument("--envs", type=int, default=4, help="environments that step together")
    parser.add_argument("--steps", type=int, default=30_000, help="to play, of all environments")
    parser.add_argument("--capacity", type=int, default=50_000, help="transitions that the buffer holds")
    parser.add_argument("--prioritized", action="store_true", help="draw by priority (default: alike)")
    parser.add_argument("--n-steps", type=int, default=1, help="rewards of a transition, where drawn by priority")
    parser.add_argument("--discount", type=float, default=0.99, help="of a step")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps before the first update")
    parser.add_argument("--width", type=int, default=128, help="of the network's two layers")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("output/sb3"), help="folder of summary.json and the ring")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, read the ring, and write what was reached."""
    settings = parse(arguments)
    torch.set_num_threads(1)
    settings.out.mkdir(parents=True, exist_ok=True)
    ring = settings.out / "ring.well"
    summary = {**train(settings, ring), **read(ring)}
    (settings.out / "summary.json").write_text(json.dumps({**summary, "settings": vars(settings)}, default=str))
    print(
        f"return {summary['evaluated_return']:.1f} after {settings.steps:,} steps ({summary['seconds']:.0f} s); "
        f"{summary['steps_stored']:,} of them in {ring}, {len(summary['returns'])} whole episodes"
    )


if __name__ == "__main__":
    main()
