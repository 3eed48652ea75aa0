r"""Soft actor-critic: an actor in another process, a learner in this one, and a store between them.

::

    actor process                              this process
    env -> EpisodeRecorder -> ring of steps -> Table -> ReplayLoader -> Agent.update
              ^                                                            |
              +------- new weights, and leave for some more steps ---------+

The actor appends every step to the store, once; the observation after it is the next step's. The table over the store
holds an item a step, and the loader makes transitions of them when they are sampled.

    python examples/sac_online.py                                  # Pendulum to better than -150, a minute or two
    python examples/sac_online.py --replay first.well              # the same, and keep what was played
    python examples/sac_online.py --prioritized --offline first.well --share 0.5 \
        --learning-starts 200 --updates-a-step 4 --steps 2000       # like RLPD, and by priority

Sources: T. Haarnoja et al., Soft actor-critic algorithms and applications, 2018; P. Ball et al., Efficient online
reinforcement learning with offline data, 2023 (RLPD); T. Schaul et al., Prioritized experience replay, 2016.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import stepwell
from stepwell.recorders import EpisodeRecorder, schema_of
from stepwell.replay import Prioritized, SampleToInsertRatio

LOG_STD_RANGE = (-5.0, 2.0)
STEPS_AN_ORDER = 50
ACTOR_TIMEOUT_SECONDS = 120.0


def mlp(*sizes: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Policy(nn.Module):
    """A squashed Gaussian over the actions of a box."""

    def __init__(self, env: gymnasium.Env[Any, Any], hidden: int) -> None:
        super().__init__()
        low, high = env.action_space.low, env.action_space.high
        self.net = mlp(env.observation_space.shape[0], hidden, hidden, 2 * len(low))
        self.register_buffer("scale", torch.as_tensor((high - low) / 2))
        self.register_buffer("middle", torch.as_tensor((high + low) / 2))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation before squashing, [B, A] each."""
        mean, log_std = self.net(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE).exp()

    def sample(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and the logarithms of their densities [B], with gradients."""
        mean, std = self(observations)
        normal = torch.distributions.Normal(mean, std)
        raw = normal.rsample()
        # log(1 - tanh(x)^2), in a form that does not overflow
        squash = 2 * (np.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh() * self.scale + self.middle, (normal.log_prob(raw) - squash - self.scale.log()).sum(-1)

    @torch.no_grad()
    def act(self, observations: np.ndarray, explore: bool = False) -> np.ndarray:
        """Return actions for observations [..., O]: random ones to explore, else the most likely ones."""
        inputs = torch.as_tensor(observations, dtype=torch.float32)
        actions = self.sample(inputs)[0] if explore else self(inputs)[0].tanh() * self.scale + self.middle
        return actions.numpy()


class Critic(nn.Module):
    """Two estimates of the value of an action."""

    def __init__(self, env: gymnasium.Env[Any, Any], hidden: int) -> None:
        super().__init__()
        inputs = env.observation_space.shape[0] + env.action_space.shape[0]
        self.nets = nn.ModuleList(mlp(inputs, hidden, hidden, 1) for _ in range(2))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both estimates, [2, B]."""
        inputs = torch.cat([observations, actions], dim=-1)
        return torch.stack([net(inputs).squeeze(-1) for net in self.nets])


class Agent:
    """The networks and how they learn from a batch."""

    def __init__(self, env: gymnasium.Env[Any, Any], hidden: int, learning_rate: float) -> None:
        self.policy = Policy(env, hidden)
        self.critic = Critic(env, hidden)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(env.action_space.shape[0])
        groups = (self.policy.parameters(), self.critic.parameters(), [self.log_alpha])
        self.optimisers = [torch.optim.Adam(group, lr=learning_rate, fused=True) for group in groups]

    def update(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Learn from one batch; returns the size of each sample's TD error, [B]."""
        policy_optimiser, critic_optimiser, alpha_optimiser = self.optimisers
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            actions, log_probs = self.policy.sample(batch["next_observation"])
            next_value = self.target(batch["next_observation"], actions).amin(0) - alpha * log_probs
            # the discount of a transition is 0 where the episode terminated, and not where it was truncated
            goal = batch["reward"] + batch["discount"] * next_value
        error = self.critic(batch["observation"], batch["action"]) - goal
        # not valid: the actor was killed, and nobody knows what the last action led to
        weights = batch["table.weight"] * batch["is_valid"]
        descend(critic_optimiser, (weights * error.square()).mean())

        actions, log_probs = self.policy.sample(batch["observation"])
        self.critic.requires_grad_(False)
        descend(policy_optimiser, (alpha * log_probs - self.critic(batch["observation"], actions).amin(0)).mean())
        self.critic.requires_grad_(True)
        descend(alpha_optimiser, -(self.log_alpha * (log_probs.detach() + self.target_entropy)).mean())
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        return error.detach().abs().mean(0)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step down the gradient."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def play(path: str, env_id: str, hidden: int, seed: int, orders: Connection) -> None:
    """Record steps as they are ordered, until the learner hangs up: the actor process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    with suppress(EOFError), EpisodeRecorder(gymnasium.make(env_id), stepwell.open(path)) as env:
        env.action_space.seed(seed)
        policy = Policy(env, hidden)
        observation, _ = env.reset(seed=seed)
        while True:
            weights, num_steps = orders.recv()
            if weights is not None:
                policy.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
            for _ in range(num_steps):
                action = env.action_space.sample() if weights is None else policy.act(observation, explore=True)
                observation, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    observation, _ = env.reset()


@contextmanager
def actor(*arguments: Any) -> Iterator[Connection]:
    """Run an actor process; it ends when the connection does, however this process ends."""
    # spawned, so that it does not hold this end open itself
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=play, args=(*arguments, theirs), daemon=True)
    # Ctrl-C is for the learner alone; a process that is started while it is ignored goes on ignoring it
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, handler)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(ACTOR_TIMEOUT_SECONDS)


def weights_of(policy: Policy) -> dict[str, np.ndarray]:
    """Return the policy's weights as arrays, which are pickled by value; tensors would be shared."""
    return {name: value.numpy() for name, value in policy.state_dict().items()}


def evaluate(policy: Policy, env_id: str, num_episodes: int) -> np.ndarray:
    """Return the returns of a few episodes of the most likely actions, the same starts at every call."""
    envs = gymnasium.make_vec(env_id, num_envs=num_episodes, vectorization_mode="sync")
    observations, _ = envs.reset(seed=10_000)
    returns, running = np.zeros(num_episodes), np.ones(num_episodes, bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = envs.step(policy.act(observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


def make_loader(ring: stepwell.Store, settings: argparse.Namespace) -> stepwell.ReplayLoader:
    """Return batches of transitions from the ring, and from an offline store where there is one."""
    offline = settings.offline is not None
    online_batch = round(settings.batch_size * (1 - settings.share)) if offline else settings.batch_size
    # what an update takes of the table, a step pays for: the learner waits when it is two orders ahead of the actor
    ratio = online_batch * settings.updates_a_step
    limiter = SampleToInsertRatio(ratio, settings.learning_starts, error_buffer=2.0 * STEPS_AN_ORDER * ratio)
    sampler = Prioritized(0.6) if settings.prioritized else "uniform"
    table = stepwell.Table(ring, sampler=sampler, max_size=settings.capacity, limiter=limiter, seed=settings.seed)
    sources = [table, stepwell.open(settings.offline, mode="r")] if offline else [table]
    fields, transform = stepwell.transition_fields(discount=0.99)
    return stepwell.ReplayLoader(
        sources,
        fields,
        transform=transform,
        batch_size=settings.batch_size,
        shares=[1 - settings.share, settings.share] if offline else None,
        beta=(0.4, 1.0, settings.steps * settings.updates_a_step * settings.batch_size),
        seed=settings.seed,
        to="torch",
        timeout=ACTOR_TIMEOUT_SECONDS,
    )


def train(settings: argparse.Namespace) -> dict[str, Any]:
    """Train an agent; returns its evaluations and a few counts."""
    torch.manual_seed(settings.seed)
    env = gymnasium.make(settings.env)
    ring = stepwell.create(settings.replay, schema_of(env), capacity=settings.capacity)
    agent = Agent(env, settings.hidden, settings.learning_rate)
    loader = make_loader(ring, settings)
    evaluations: list[dict[str, float]] = []

    def report(num_steps: int) -> None:
        returns = evaluate(agent.policy, settings.env, settings.evaluation_episodes)
        evaluations.append({"steps": num_steps, "return": returns.mean(), "low": returns.min(), "high": returns.max()})
        print(f"{num_steps:7,} steps  return {returns.mean():8.1f}", flush=True)

    begun = time.perf_counter()
    report(0)
    with actor(str(ring.path), settings.env, settings.hidden, settings.seed) as orders:
        orders.send((None, settings.learning_starts + STEPS_AN_ORDER))
        for step in range(1, settings.steps + 1):
            for batch in islice(loader, settings.updates_a_step):
                errors = agent.update(batch)
                if settings.prioritized:
                    loader.update_priorities(batch, errors + 1e-3)
            if step % STEPS_AN_ORDER == 0 and step < settings.steps:
                orders.send((weights_of(agent.policy), STEPS_AN_ORDER))
            if step % settings.evaluate_every == 0:
                report(settings.learning_starts + step)
    ring.refresh()
    seconds = time.perf_counter() - begun
    counts = loader.tables[0].info.counts
    return {
        "evaluations": evaluations,
        "steps_stored": ring.num_steps,
        "items": counts.inserts,
        "samples": counts.samples,
        "seconds": seconds,
        "settings": vars(settings),
    }


def draw_curves(path: Path, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the evaluation returns of some runs over their steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for name, summary in summaries.items():
        steps, mean, low, high = (
            [row[key] for row in summary["evaluations"]] for key in ("steps", "return", "low", "high")
        )
        axes.fill_between(steps, low, high, alpha=0.15, linewidth=0)
        axes.plot(steps, mean, label=name)
    axes.set(xlabel="steps of the environment", ylabel="return of evaluation: mean, range")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--env", default="Pendulum-v1", help="a Gymnasium environment whose actions are a box")
    parser.add_argument("--steps", type=int, default=5000, help="to play while learning")
    parser.add_argument("--updates-a-step", type=int, default=1, help="how often the agent learns a step")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps of random actions before the first")
    parser.add_argument("--batch-size", type=int, default=256, help="transitions an update")
    parser.add_argument("--hidden", type=int, default=128, help="units of each of the two hidden layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of all three optimisers")
    parser.add_argument("--replay", default=":memory:", help="where the ring is; a path keeps it")
    parser.add_argument("--capacity", type=int, default=100_000, help="steps that the ring holds")
    parser.add_argument("--prioritized", action="store_true", help="sample by TD error instead of uniformly")
    parser.add_argument("--offline", type=Path, default=None, help="a store of earlier episodes to learn from, too")
    parser.add_argument("--share", type=float, default=0.5, help="of the batch that comes from --offline")
    parser.add_argument("--evaluate-every", type=int, default=250, help="steps between two evaluations")
    parser.add_argument("--evaluation-episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("output/sac"), help="folder of summary.json and curve.png")
    parser.add_argument("--compare", type=Path, nargs="*", default=[], help="summary.json of runs to draw beside it")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, then write what was reached."""
    settings = parse(arguments)
    torch.set_num_threads(1)
    summary = train(settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=1, default=str))
    others = {path.parent.name: json.loads(path.read_text()) for path in settings.compare}
    draw_curves(settings.out / "curve.png", {**others, settings.out.name: summary})
    rate = settings.steps * settings.updates_a_step / summary["seconds"]
    print(f"{summary['steps_stored']:,} steps stored, {rate:.0f} updates/s; {settings.out}/curve.png, summary.json")


if __name__ == "__main__":
    main()
