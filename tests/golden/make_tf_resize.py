"""Writes `tf_resize.npz`, images as TensorFlow resizes them: `python make_tf_resize.py FILE`; needs tensorflow-cpu."""

import sys

import numpy as np
import tensorflow as tf

SIZES = [((48, 64), (20, 20)), ((37, 5), (32, 32)), ((30, 20), (60, 50)), ((40, 40), (10, 30)), ((11, 90), (30, 7))]

rng, found = np.random.default_rng(0), {}
for number, (old, new) in enumerate(SIZES):
    image = rng.integers(0, 256, (*old, 3)).astype(np.uint8)
    # hard edges, at which the filters swing beyond the range
    found[f"image_{number}"] = image = image // 128 * 255 if number % 2 else image
    for method in ("bicubic", "lanczos3"):
        floats = tf.image.resize(image, new, method=method, antialias=True)
        found[f"tf_{method}_{number}"] = tf.cast(tf.clip_by_value(tf.round(floats), 0, 255), tf.uint8).numpy()
np.savez_compressed(sys.argv[1], **found)
