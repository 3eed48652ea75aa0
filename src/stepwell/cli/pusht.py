"""A scripted pusher for PushT: it looks for the push that brings the T closest to its goal, walks behind it, pushes.

The block has no friction and stops at once when nothing pushes it, so one push is easy to foresee: an impulse along the
inward normal at the contact moves the centre of gravity and turns the block about it. The T's own frame, in pixels::

    (-60, 0) +-----------------+ (60, 0)
             |       bar       |
   (-60, 30) +-----+     +-----+ (60, 30)
                   |stem |              x: centre of gravity (0, 45)
        (-15, 120) +-----+ (15, 120)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ScriptedPusher"]

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

    Args:
        seed: of the noise; also decides how steady the hand of this pusher is.

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
