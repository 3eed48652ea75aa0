import numpy as np

from stepwell.transforms.images_filters_kernels import add_noise, blur, fill_boxes, normal_table

UNBOUND = np.float32(0)


def test_equal_keys_add_equal_noise_of_their_deviation():
    images = np.zeros((3, 1001), np.float32)
    add_noise(images, np.array([5, 6, 5], np.uint64), np.array([1, 1, 2], np.float32), normal_table(), UNBOUND)
    np.testing.assert_array_equal(images[0] * 2, images[2])
    assert (images[0] != images[1]).mean() > 0.99


def test_keys_that_follow_each_other_do_not_add_the_same_noise_shifted():
    golden = 0x9E3779B97F4A7C15
    images = np.zeros((2, 1000), np.float32)
    keys = np.array([9, (9 + golden) % 2**64], np.uint64)
    add_noise(images, keys, np.ones(2, np.float32), normal_table(), UNBOUND)
    assert abs(np.corrcoef(images[0, 4:], images[1, :-4])[0, 1]) < 0.1


def test_a_blur_keeps_the_sum_of_what_is_far_from_the_border():
    image = np.zeros((1, 31, 33, 1), np.float32)
    image[0, 15, 16] = 100
    out = np.empty_like(image)
    blur(image, 9, np.array([1.7], np.float32), out)
    assert abs(out.sum() - 100) < 1e-3
    np.testing.assert_allclose(out[0, ::-1, ::-1], out[0], rtol=1e-5)
    assert out[0, 15, 16] == out.max()


def test_boxes_are_filled_and_those_without_height_are_not():
    images = np.zeros((2, 6, 7, 2), np.uint16)
    fill_boxes(images, np.array([[1, 2, 3, 4], [1, 2, 0, 4]]), np.array([5, 600], np.uint16))
    expected = np.zeros((6, 7, 2))
    expected[1:4, 2:6] = [5, 600]
    np.testing.assert_array_equal(images[0], expected)
    assert (images[1] == 0).all()
