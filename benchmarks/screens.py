"""Images that a simulator, a game and a moving camera yield, one after the other as in an episode."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from datasets import photo_crops

__all__ = ["GREY_SIDE", "camera_images", "game_screens", "grey_screens", "played_screens", "pusht_images"]

PUSHT_STEPS = 300
GAME_HEIGHT, GAME_WIDTH = 210, 160
GREY_SIDE = 84
CAMERA_SIDE, PHOTO_SIDE = 96, 512
GAMES = ("breakout", "pong", "ms_pacman", "seaquest")
# frames of a game that one action lasts
FRAME_SKIP = 4


def pusht_images(number: int) -> np.ndarray:
    """Return what PushT renders while its scripted pusher plays, uint8 [number, 96, 96, 3]; a drawing without PushT."""
    # a machine without a screen must be able to draw
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gym_pusht  # noqa: F401 - importing it registers the environment
        import gymnasium
    except ImportError:
        return drawn_pusht(number)
    from stepwell.cli.demo import ScriptedPusher

    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels", max_episode_steps=PUSHT_STEPS)
    images: list[np.ndarray] = []
    for seed in range(number):
        image, info = env.reset(seed=seed)
        images.append(image)
        policy, is_over = ScriptedPusher(seed), False
        while not is_over and len(images) < number:
            image, _, terminated, truncated, info = env.step(policy.act(info))
            images.append(image)
            is_over = terminated or truncated
        if len(images) >= number:
            break
    env.close()
    return np.stack(images[:number])


def drawn_pusht(number: int) -> np.ndarray:
    """Return a T that turns beside a disc on white, uint8 [number, 96, 96, 3]."""
    y, x = np.mgrid[:96, :96] - 48.0
    images = np.full((number, 96, 96, 3), 255, np.uint8)
    for step, image in enumerate(images):
        angle = step / 40
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        bar = (np.abs(along) < 12) & (np.abs(across + 6) < 3)
        stem = (np.abs(along) < 3) & (np.abs(across - 6) < 9)
        image[bar | stem] = 119, 136, 153
        image[np.hypot(x - 30 * np.cos(step / 15), y - 30 * np.sin(step / 15)) < 3] = 65, 105, 225
    return images


def game_screens(number: int) -> np.ndarray:
    """Return the screens of a game of bricks, a paddle, a ball and a score, uint8 [number, 210, 160, 3]."""
    rng = np.random.default_rng(0)
    image = np.zeros((GAME_HEIGHT, GAME_WIDTH, 3), np.uint8)
    image[17:32], image[32:196, :8], image[32:196, 152:] = 142, 142, 142
    for row, color in enumerate(((200, 72, 72), (198, 108, 58), (180, 122, 48), (162, 162, 42), (72, 160, 72))):
        image[57 + 6 * row : 63 + 6 * row, 8:152] = color
    paddle, place, speed = 80, np.array([100.0, 80.0]), np.array([2.0, 1.5])
    screens = np.empty((number, *image.shape), np.uint8)
    for step, screen in enumerate(screens):
        place += speed
        for axis, (low, high) in enumerate(((64, 188), (8, 150))):
            if not low < place[axis] < high:
                speed[axis] *= -1
                place[axis] = np.clip(place[axis], low, high)
        if step % 40 == 39:
            row, column = rng.integers(5), rng.integers(18)
            image[57 + 6 * row : 63 + 6 * row, 8 + 8 * column : 16 + 8 * column] = 0
            image[5:15, 36:100] = _score(step // 40)
        paddle = int(np.clip(paddle + rng.integers(-4, 5), 8, 136))
        screen[...] = image
        screen[189:193, paddle : paddle + 16] = screen[int(place[0]) :, int(place[1]) :][:4, :2] = 200, 72, 72
    return screens


def grey_screens(number: int) -> np.ndarray:
    """Return the same game grey and smaller, as agents see it, uint8 [number, 84, 84]."""
    rows = np.arange(GREY_SIDE) * GAME_HEIGHT // GREY_SIDE
    columns = np.arange(GREY_SIDE) * GAME_WIDTH // GREY_SIDE
    small = game_screens(number)[:, rows][:, :, columns]
    return np.rint(small @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def played_screens(number: int) -> dict[str, np.ndarray]:
    """Return screens of Atari games played at random, as agents see them, name to uint8 [number, 84, 84].

    They are grey, of every fourth frame (the brighter of it and the one before), averaged to 84 x 84. A drawn game
    where ale-py or OpenCV is not installed.
    """
    try:
        import ale_py
        import cv2
    except ImportError:
        return {"a drawn game": grey_screens(number)}
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    side = (GREY_SIDE, GREY_SIDE)
    return {
        name: np.stack([cv2.resize(screen, side, interpolation=cv2.INTER_AREA) for screen in _play(name, number)])
        for name in GAMES
    }


def _play(name: str, number: int) -> Iterator[np.ndarray]:
    """Yield a screen a step, uint8 [210, 160]."""
    import ale_py
    from ale_py import roms

    game = ale_py.ALEInterface()
    game.setInt("random_seed", 0)
    game.loadROM(roms.get_rom_path(name))
    actions, rng = game.getMinimalActionSet(), np.random.default_rng(0)
    for _ in range(number):
        if game.game_over():
            game.reset_game()
        action = actions[rng.integers(len(actions))]
        for _ in range(FRAME_SKIP - 1):
            game.act(action)
        before = game.getScreenGrayscale()
        game.act(action)
        yield np.maximum(before, game.getScreenGrayscale())


def camera_images(number: int) -> np.ndarray:
    """Return a part of a photo that moves, with the noise of a camera, uint8 [number, 96, 96, 3]."""
    rng = np.random.default_rng(1)
    photo = photo_crops(1, PHOTO_SIDE)[0].astype(np.float32)
    room, steps = PHOTO_SIDE - CAMERA_SIDE, np.arange(number)
    tops, lefts = (np.rint((1 + np.sin(steps / period)) * room / 2).astype(int) for period in (90, 130))
    images = np.empty((number, CAMERA_SIDE, CAMERA_SIDE, 3), np.uint8)
    for image, top, left in zip(images, tops.tolist(), lefts.tolist(), strict=True):
        part = photo[top : top + CAMERA_SIDE, left : left + CAMERA_SIDE]
        image[...] = np.clip(np.rint(part + rng.normal(scale=2, size=part.shape)), 0, 255)
    return images


def _score(points: int) -> np.ndarray:
    """Return a number in blocks, 3 digits of 5 lines, uint8 [10, 64, 3]."""
    board = np.zeros((10, 64, 3), np.uint8)
    for place, digit in enumerate(f"{points:03d}"):
        bits = np.random.default_rng(int(digit)).integers(0, 2, (5, 3), dtype=np.uint8)
        board[:, 20 * place : 20 * place + 12] = np.kron(bits, np.full((2, 4), 142, np.uint8))[..., None]
    return board
