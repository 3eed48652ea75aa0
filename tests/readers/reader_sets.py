"""Data sets as robomimic, D4RL, Minari and diffusion policy write them, made after the formats' descriptions."""

import json
from pathlib import Path

import numpy as np


def write_robomimic(path: Path, lengths=(4, 6, 3, 5), *, numbers=(0, 1, 10, 2), repeats=True, **storage) -> Path:
    """Write demonstrations; the n-th has observations that say its number and step."""
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        data.attrs["problem_info"] = json.dumps({"language_instruction": "lift the cube"})
        for number, length in zip(numbers, lengths, strict=True):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length
            demo.attrs["model_file"] = "<mujoco>" + " " * 5000
            camera, state = robomimic_camera(number, length), robomimic_state(number, length)
            shift = 1 if repeats else 0
            for name, rows in (("cam", camera), ("eef", state)):
                demo.create_dataset(f"obs/{name}", data=rows[:-1], **storage)
                demo.create_dataset(f"next_obs/{name}", data=rows[shift : shift + length], **storage)
            demo["actions"] = np.full((length, 7), number, np.float64)
            demo["rewards"] = np.zeros(length)
            demo["dones"] = np.eye(1, length, length - 1, dtype=np.int64)[0]
        file["mask/train"] = np.array([f"demo_{number}".encode() for number in numbers[::2]])
    return path


def robomimic_camera(number: int, length: int) -> np.ndarray:
    step = np.arange(length + 1)[:, None, None, None]
    return np.broadcast_to((number * 16 + step) % 256, (length + 1, 32, 24, 3)).astype(np.uint8).copy()


def robomimic_state(number: int, length: int) -> np.ndarray:
    return np.random.default_rng(number).random((length + 1, 5))


def write_d4rl(path: Path, *, count=30, ends=(9,), cuts=(19,), next_observations=True, repeats=True) -> dict:
    """Write a flat file; returns its arrays."""
    import h5py

    rng = np.random.default_rng(3)
    states = rng.random((count + 1, 4)).astype(np.float32)
    arrays = {
        "observations": states[:-1],
        "actions": rng.random((count, 2)).astype(np.float32),
        "rewards": np.arange(count, dtype=np.float32),
        "terminals": np.isin(np.arange(count), ends),
        "timeouts": np.isin(np.arange(count), cuts),
        "infos/qpos": rng.random((count, 3)),
    }
    if next_observations:
        arrays["next_observations"] = states[1:] if repeats else rng.random((count, 4)).astype(np.float32)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file["metadata/algorithm"] = "SAC"
        file["metadata/iteration"] = 7
    return arrays


BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
CAMERA = {"type": "Box", "dtype": "uint8", "shape": [32, 40, 3], "low": 0, "high": 255}
OBSERVATIONS = {
    "type": "Dict",
    "subspaces": {
        "cam": CAMERA,
        "pair": {"type": "Tuple", "subspaces": [{"type": "Discrete", "dtype": "int64", "n": 3}, BOX]},
        "say": {"type": "Text", "max_length": 8},
    },
}


def minari_episode(number: int, length: int) -> dict:
    """Return the rows of an episode by dotted name; observations and infos have one more."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:32, :40]
    pictures = [np.stack([x * 5 + step, y * 6, x + y + number], -1) for step in range(length + 1)]
    return {
        "observations.cam": np.stack(pictures).astype(np.uint8),
        "observations.pair.0": np.arange(length + 1) % 3,
        "observations.pair.1": rng.random((length + 1, 2)).astype(np.float32),
        "observations.say": [f"step {step}" * (step % 2) for step in range(length + 1)],
        "actions": rng.random((length, 2)).astype(np.float32),
        "rewards": rng.random(length),
        "terminations": np.arange(length) == (length - 1 if number % 2 == 0 else -1),
        "truncations": np.arange(length) == (length - 1 if number % 2 else -1),
        "infos.lives": np.arange(length + 1),
    }


def write_minari(root: Path, data_format: str, lengths=(5, 3, 4), *, jpeg=True) -> Path:
    """Write a Minari data set whose cameras are JPEG files, or plain."""
    folder = root / "data"
    folder.mkdir(parents=True)
    told = {
        "total_episodes": len(lengths),
        "total_steps": sum(lengths),
        "data_format": data_format,
        "jpeg_encoding": jpeg,
        "observation_space": json.dumps(OBSERVATIONS),
        "action_space": json.dumps(BOX),
        "dataset_id": "test/mix-v0",
        "author": ["me"],
    }
    (folder / "metadata.json").write_text(json.dumps(told))
    write = _write_minari_hdf5 if data_format == "hdf5" else _write_minari_arrow
    write(folder, lengths, jpeg)
    return root


def minari_jpegs(number: int, length: int) -> list[bytes]:
    """Return the JPEG files of an episode's camera."""
    import simplejpeg

    return [simplejpeg.encode_jpeg(picture) for picture in minari_episode(number, length)["observations.cam"]]


def _write_minari_hdf5(folder: Path, lengths, jpeg: bool) -> None:
    import h5py

    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["seed"], group.attrs["total_steps"] = number, number + 7, length
            for name, rows in minari_episode(number, length).items():
                path = name.replace(".pair.", ".pair._index_").replace(".", "/")
                if name.endswith("cam") and jpeg:
                    kind = h5py.vlen_dtype(np.uint8)
                    blobs = np.empty(length + 1, object)
                    blobs[:] = [np.frombuffer(blob, np.uint8) for blob in minari_jpegs(number, length)]
                    group.create_dataset(path, data=blobs, dtype=kind)
                else:
                    group[path] = rows


def _write_minari_arrow(folder: Path, lengths, jpeg: bool) -> None:
    import pyarrow as pa

    for number, length in enumerate(lengths):
        rows = minari_episode(number, length)
        place = folder / str(number)
        place.mkdir()
        cam = rows["observations.cam"]
        pictures = (
            pa.array(minari_jpegs(number, length), pa.binary())
            if jpeg
            else pa.FixedSizeListArray.from_arrays(pa.array(cam.reshape(-1)), cam[0].size)
        )
        pair = pa.StructArray.from_arrays(
            [pa.array(rows["observations.pair.0"]), _fixed(rows["observations.pair.1"])], ["0", "1"]
        )
        observations = pa.StructArray.from_arrays(
            [pictures, pair, pa.array(rows["observations.say"])], ["cam", "pair", "say"]
        )
        table = pa.table(
            {
                "observations": observations,
                "actions": _fixed(np.concatenate([rows["actions"], np.zeros((1, 2), np.float32)])),
                "rewards": np.append(rows["rewards"], 0.0),
                "terminations": np.append(rows["terminations"], False),
                "truncations": np.append(rows["truncations"], False),
                "infos": pa.StructArray.from_arrays([pa.array(rows["infos.lives"])], ["lives"]),
            }
        )
        with pa.ipc.new_file(place / "part-0.arrow", table.schema) as file:
            file.write_table(table)
        (place / "metadata.json").write_text(json.dumps({"id": number, "seed": number + 7, "total_steps": length}))


def _fixed(rows: np.ndarray):
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def write_replay(path: Path, *, zarr_format=2, ends=(13, 14, 30, 50), chunk=7) -> dict:
    """Write a replay buffer of diffusion policy; returns its arrays."""
    import zarr

    rng = np.random.default_rng(5)
    count = ends[-1]
    arrays = {
        "img": rng.integers(0, 256, (count, 8, 8, 3)).astype(np.float32),
        "action": rng.random((count, 2)).astype(np.float32),
        "state": rng.random((count, 5)),
    }
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    data, meta = root.create_group("data"), root.create_group("meta")
    for name, rows in arrays.items():
        made = data.create_array(name, shape=rows.shape, chunks=(chunk, *rows.shape[1:]), dtype=rows.dtype)
        made[...] = rows
    made = meta.create_array("episode_ends", shape=(len(ends),), chunks=(2,), dtype=np.int64)
    made[...] = np.array(ends)
    return arrays


# the smallest set of each, made in a directory; each returns what a reader is given


def robomimic(root: Path) -> Path:
    return write_robomimic(root / "a.hdf5")


def d4rl(root: Path) -> Path:
    write_d4rl(root / "a.hdf5")
    return root / "a.hdf5"


def minari_hdf5(root: Path) -> Path:
    return write_minari(root / "set", "hdf5")


def minari_arrow(root: Path) -> Path:
    return write_minari(root / "set", "arrow")


def classes(root: Path) -> Path:
    """Write images in a directory a class."""
    from imagecodecs import jpeg8_encode, png_encode

    for label in ("cat", "dog"):
        (root / "set" / label).mkdir(parents=True)
        for number in range(2):
            (root / "set" / label / f"{number}.png").write_bytes(png_encode(np.full((9, 12, 3), number, np.uint8)))
    (root / "set" / "dog" / "7.jpg").write_bytes(jpeg8_encode(np.zeros((9, 12, 3), np.uint8)))
    return root / "set"


def episodes(root: Path) -> Path:
    """Write images and arrays in a directory an episode."""
    from imagecodecs import png_encode

    for run in ("run_1", "run_2"):
        (root / "set" / run / "front").mkdir(parents=True)
        for number in range(3):
            path = root / "set" / run / "front" / f"{number}.png"
            path.write_bytes(png_encode(np.full((9, 12, 3), number, np.uint8)))
        np.save(root / "set" / run / "actions.npy", np.zeros((3, 2), "f4"))
        np.savez_compressed(root / "set" / run / "more.npz", speed=np.ones(3))
    return root / "set"
