"""Files as robots and simulators write them: made as the code of ACT, ManiSkill, DROID, Dreamer, Dopamine does."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np

QPOS, CAMERAS = 14, ("cam_high", "cam_low", "cam_left_wrist")
LENGTHS = {0: 5, 1: 3, 2: 4, 10: 6}


def picture(number: int, step: int, camera: int = 0, shape: tuple[int, ...] = (48, 64, 3)) -> np.ndarray:
    """Return an image that says where it belongs."""
    return np.full(shape, [number * 20 + step, camera * 40, 99][: shape[2]], np.uint8)


def write_act(root: Path, lengths: dict[int, int] = LENGTHS) -> Path:
    """Write a file an episode, images in chunks of one, without filters."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    for number, length in lengths.items():
        with h5py.File(root / f"episode_{number}.hdf5", "w", rdcc_nbytes=1024**2 * 2) as file:
            file.attrs["sim"] = True
            images = file.create_group("observations/images")
            for camera in CAMERAS:
                images.create_dataset(camera, (length, 48, 64, 3), "uint8", chunks=(1, 48, 64, 3))
            for name in ("observations/qpos", "observations/qvel", "action"):
                file.create_dataset(name, (length, QPOS), "float32")
                file[name][...] = np.arange(length)[:, None] + number * 100
            for place, camera in enumerate(CAMERAS):
                images[camera][...] = np.stack([picture(number, step, place) for step in range(length)])
    return root


def act_jpegs(number: int, length: int) -> dict[str, list[bytes]]:
    """Return the JPEG files of each camera, of different sizes."""
    import simplejpeg

    rng = np.random.default_rng(number)
    noise = rng.integers(0, 255, (len(CAMERAS), length, 48, 64, 3)).astype(np.uint8)
    return {
        camera: [simplejpeg.encode_jpeg(noise[place, step] // (step + 1), quality=50) for step in range(length)]
        for place, camera in enumerate(CAMERAS)
    }


def write_aloha(root: Path, lengths: dict[int, int] = LENGTHS) -> Path:
    """Write compressed episodes: JPEG rows padded with zeros, and their lengths in an order of their own."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    for number, length in lengths.items():
        jpegs = act_jpegs(number, length)
        with h5py.File(root / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = False, True
            most = max(len(blob) for blobs in jpegs.values() for blob in blobs)
            for camera in CAMERAS:
                padded = np.zeros((length, most), np.uint8)
                for row, blob in enumerate(jpegs[camera]):
                    padded[row, : len(blob)] = np.frombuffer(blob, np.uint8)
                path = f"observations/images/{camera}"
                file.create_dataset(path, padded.shape, "uint8", chunks=(1, most))
                file[path][...] = padded
            for name in ("observations/qpos", "observations/qvel", "observations/effort", "action", "base_action"):
                file[name] = np.full((length, 2 if name == "base_action" else QPOS), number, np.float32)
            # the order of the robot's configuration, which is not that of the names
            file["compress_len"] = np.array([[len(blob) for blob in jpegs[each]] for each in CAMERAS], np.float32)
    return root


def write_maniskill(root: Path, lengths: tuple[int, ...] = (4, 3, 6)) -> Path:
    """Write ``trajectory.h5`` with observations that have a row more, and the JSON beside it."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    episodes = []
    with h5py.File(root / "trajectory.h5", "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"traj_{number}", track_order=True)
            rgb = np.stack([picture(number, step, shape=(16, 24, 3)) for step in range(length + 1)])
            group.create_dataset("obs/sensor_data/base/rgb", data=rgb, compression="gzip", compression_opts=5)
            group["obs/agent/qpos"] = np.arange(9.0 * (length + 1), dtype=np.float32).reshape(-1, 9) + number
            group["env_states/actors/cube"] = np.full((length + 1, 13), number, np.float32)
            group["actions"] = np.full((length, 8), number, np.float32)
            group["terminated"] = np.arange(length) == (length - 1 if number != 1 else -1)
            group["truncated"] = np.arange(length) == (length - 1 if number == 1 else -1)
            group["success"], group["rewards"] = np.zeros(length, bool), np.arange(length, dtype=np.float32)
            entry = {"episode_id": number, "episode_seed": number + 7, "elapsed_steps": length, "control_mode": "pd"}
            episodes.append({**entry, "reset_kwargs": {"seed": number}})
    told = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": {}}, "episodes": episodes, "source_type": "rl"}
    (root / "trajectory.json").write_text(json.dumps(told))
    return root / "trajectory.h5"


def write_droid(
    root: Path, serials: tuple[str, ...] = ("111", "222"), length: int = 30, *, videos: bool = True
) -> Path:
    """Write a folder an episode: datasets that grew, metadata, and videos of cameras by serial number."""
    import h5py

    for number, serial in enumerate(serials):
        folder = root / f"success/day/episode_{number}"
        (folder / "recordings/MP4").mkdir(parents=True)
        with h5py.File(folder / "trajectory.h5", "w") as file:
            file.attrs["success"] = True
            for name, shape in {
                "action/joint_position": (7,),
                "action/robot_state/joint_positions": (7,),
                "observation/robot_state/joint_positions": (7,),
                f"observation/camera_extrinsics/{serial}_left": (6,),
                f"observation/timestamp/cameras/{serial}_read_start": (),
            }.items():
                made = file.create_dataset(name, (1, *shape), "float64", maxshape=(None, *shape))
                made.resize(length, 0)
                made[...] = number
        told = {
            "uuid": f"lab+{number}",
            "wrist_cam_serial": serial,
            "trajectory_length": length,
            "current_task": "tidy",
        }
        (folder / f"metadata_lab+{number}.json").write_text(json.dumps(told))
        if videos:
            from written_videos import write_video

            write_video(folder / f"recordings/MP4/{serial}.mp4")
            write_video(folder / f"recordings/MP4/{serial}-stereo.mp4")
    return root


def dreamer_rows(length: int, number: int) -> dict[str, np.ndarray]:
    return {
        "image": np.stack([picture(number, step, shape=(8, 8, 3)) for step in range(length)]),
        "action": np.full((length, 2), number, np.float32) + np.arange(length, dtype=np.float32)[:, None] / 100,
        "reward": np.arange(length, dtype=np.float32),
        "is_first": np.arange(length) == 0,
        "is_last": np.arange(length) == length - 1,
        "is_terminal": np.arange(length) == (length - 1 if number % 2 == 0 else -1),
    }


def write_dreamer_v2(root: Path, lengths: tuple[int, ...] = (5, 4, 7)) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number, length in enumerate(lengths):
        name = f"2021010{number + 1}T000000-{number:032x}-{length - 1}.npz"
        np.savez_compressed(root / name, **dreamer_rows(length, number))
    return root


def write_dreamer_v3(root: Path, lengths: tuple[int, ...] = (5, 4, 7, 3), chunk: int = 6) -> Path:
    """Write chunks of one stream that episodes go across."""
    root.mkdir(parents=True, exist_ok=True)
    rows = [dreamer_rows(length, number) for number, length in enumerate(lengths)]
    joined = {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
    total = sum(lengths)
    starts = range(0, total, chunk)
    for number, start in enumerate(starts):
        count = min(chunk, total - start)
        follower = f"id{number + 1}" if number + 1 < len(starts) else "0"
        # later chunks sort first, so that ids decide
        name = f"2024010{9 - number}T000000F000000-id{number}-{follower}-{count}.npz"
        np.savez_compressed(root / name, **{key: values[start : start + count] for key, values in joined.items()})
    return root


def decision_transformer(lengths: tuple[int, ...] = (5, 7, 3)) -> list[dict[str, np.ndarray]]:
    rng, found = np.random.default_rng(0), []
    for number, length in enumerate(lengths):
        states = rng.random((length + 1, 4)).astype(np.float32)
        found.append(
            {
                "observations": states[:-1],
                "next_observations": states[1:],
                "actions": rng.random((length, 2)).astype(np.float32),
                "rewards": rng.random(length).astype(np.float32),
                "terminals": np.arange(length) == (length - 1 if number != 1 else -1),
            }
        )
    return found


def write_decision_transformer(path: Path, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(decision_transformer(), protocol=protocol))
    return path


def write_dqn_replay(root: Path, episodes: list[int], capacity: int, *, checkpoint: int = 0, stack: int = 4) -> list:
    """Write a ring as Dopamine adds to it: zeros before each episode; returns the episodes, the last one unfinished."""
    root.mkdir(parents=True, exist_ok=True)
    store = {
        "observation": np.zeros((capacity, 8, 6), np.uint8),
        "action": np.zeros(capacity, np.int32),
        "reward": np.zeros(capacity, np.float32),
        "terminal": np.zeros(capacity, np.uint8),
    }
    added, made = 0, []
    for number, length in enumerate(episodes):
        added += stack - 1
        for place in range(added - stack + 1, added):
            for values in store.values():
                values[place % capacity] = 0
        ids = []
        for step in range(length):
            row = added % capacity
            store["observation"][row] = 1 + added % 250
            store["action"][row], store["reward"][row] = step % 3, number
            store["terminal"][row] = step == length - 1 and number < len(episodes) - 1
            ids.append(1 + added % 250)
            added += 1
        made.append(ids)
    for name, values in store.items():
        with gzip.open(root / f"$store$_{name}_ckpt.{checkpoint}.gz", "wb") as file:
            np.save(file, values, allow_pickle=False)
    for name, value in (("add_count", np.array(added)), ("invalid_range", np.zeros(stack))):
        with gzip.open(root / f"{name}_ckpt.{checkpoint}.gz", "wb") as file:
            np.save(file, value, allow_pickle=False)
    return made
