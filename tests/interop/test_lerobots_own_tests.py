"""LeRobot's own tests of datasets pass with stepwell's classes in place of theirs, but for those that are listed.

``LEROBOT_CHECKOUT=path/to/lerobot python -m pytest -n 0 -s tests/interop/test_lerobots_own_tests.py``, in an
environment with that lerobot and what its tests need. All of its ``tests/datasets`` run twice, which takes ten
minutes; those that ask for the network, or for files of Git LFS that are not there, pass neither there nor here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell

CHECKOUT = os.environ.get("LEROBOT_CHECKOUT")
HERE = Path(__file__).parent
SECONDS = 3600

# an image out of range is refused by add_frame; there it is left out, with a line that is printed
RANGE = {"test_datasets.py::test_add_frame_image_wrong_range"}
# files of images, data and facts of videos that are there before finalize; the object that encodes
OLD_INSIDES = {
    "test_datasets.py::test_tmp_mixed_deletion",
    "test_streaming_video_encoder.py::TestStreamingEncoderIntegration::test_add_frame_save_episode_streaming",
    "test_streaming_video_encoder.py::TestStreamingEncoderIntegration::test_streaming_disabled_creates_pngs",
}
INSIDES = {
    *OLD_INSIDES,
    "test_dataset_writer.py::test_batched_encoding_staging_survives_save",
    "test_dataset_writer.py::test_clear_removes_video_frame_staging_dir",
    "test_dataset_writer.py::test_save_episode_writes_parquet",
    "test_datasets.py::test_cleanup_interrupted_episode_removes_image_temp_dirs",
    "test_depth.py::TestFeatureFileRouting::test_image_mode_depth_tiff_rgb_png",
    "test_depth.py::TestFeatureFileRouting::test_video_mode_depth_uses_depth_encoder",
    "test_video_encoding.py::TestDepthEncoderConfigPersistence::test_second_episode_does_not_overwrite_depth_encoder_fields",
    "test_video_encoding.py::TestEncoderConfigPersistence::test_second_episode_does_not_overwrite_encoder_fields",
}
# functions that are to be called: Dataset.from_dict, load_dataset while a stream is made, lerobot's decoder
CALLS = {
    *(
        f"test_datasets.py::test_save_episode_shape_1_scalar_is_scalarized_before_hf_encoding[{dtype}]"
        for dtype in ("float32", "int64", "bool")
    ),
    *(
        f"test_streaming.py::test_streaming_dataset_forwards_hub_token_only_for_remote_data[{local}-{token}]"
        for local in (False, True)
        for token in ("hf_test_token", True, False)
    ),
    "test_streaming.py::test_streaming_repo_type_routes_load_dataset[bucket-parquet-hf://buckets/{repo_id}/data/*/*.parquet]",
    "test_streaming.py::test_streaming_repo_type_routes_load_dataset[dataset-{repo_id}-data/*/*.parquet]",
    "test_streaming.py::test_repo_type_is_keyword_only_and_preserves_positional_episodes",
    "test_streaming.py::test_bucket_root_caches_metadata_without_switching_to_local_streaming",
    "test_streaming.py::test_iter_raises_on_frame_error",
    "test_streaming.py::test_iter_raises_on_nested_generator_error",
}
# features of merged datasets, depth maps of one channel, and depth that stays without loss when it is encoded anew
EDITS = {
    "test_aggregate.py::test_aggregate_datasets",
    "test_aggregate.py::test_aggregate_image_datasets",
    "test_aggregate.py::test_aggregate_with_low_threshold",
    "test_dataset_tools.py::test_reencode_dataset_depth_uses_depth_encoder",
}
# attributes of its one class that 0.6 has in others
OLD_ATTRIBUTES = {
    "test_datasets.py::test_check_cached_episodes_sufficient",
    "test_datasets.py::test_frames_in_current_file_calculation",
    "test_datasets.py::test_tmp_image_deletion",
    "test_datasets.py::test_tmp_video_deletion",
}
EXPECTED = {True: RANGE | INSIDES | CALLS | EDITS, False: RANGE | OLD_INSIDES | OLD_ATTRIBUTES}


def passed(tmp_path, *, swapped):
    """Return the tests of LeRobot's that pass."""
    found, root = tmp_path / f"passed-{swapped}.json", Path(CHECKOUT).absolute()
    paths = [HERE, Path(stepwell.__file__).parents[1], root / "src", root]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "STEPWELL_CACHE": str(tmp_path / "cache"),
        "STEPWELL_PASSED": str(found),
        "STEPWELL_SWAP": "1" if swapped else "0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "lerobot_swap", "tests/datasets"]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return {name.removeprefix("tests/datasets/") for name in json.loads(found.read_text())}


@pytest.mark.skipif(CHECKOUT is None, reason="LEROBOT_CHECKOUT names no checkout of lerobot")
@pytest.mark.timeout(2 * SECONDS)
def test_they_pass_but_for_those_that_are_listed(tmp_path):
    is_new = (Path(CHECKOUT) / "tests/datasets/test_dataset_reader.py").exists()
    there, here = passed(tmp_path, swapped=False), passed(tmp_path, swapped=True)
    print(f"{len(there & here)} of {len(there)} pass")
    assert there - here == EXPECTED[is_new]
    assert len(there & here) >= 0.95 * len(there)
