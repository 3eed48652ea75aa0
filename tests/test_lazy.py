import importlib

import pytest

from stepwell.references import file_codec, file_spans


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("stepwell.codecs.files", "FileCodec", file_codec.FileCodec),
        ("stepwell.codecs.file_spans", "span_feature", file_spans.span_feature),
    ],
)
def test_names_that_moved_are_found_where_they_were_with_a_warning(module: str, name: str, value: object) -> None:
    old = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{name} is now stepwell.references"):
        assert getattr(old, name) is value
    with pytest.raises(AttributeError):
        old.__wrapped__  # noqa: B018
