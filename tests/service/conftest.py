"""What tests of servers share: a store whose steps say who wrote them."""

import pytest

import stepwell
from stepwell import Array

pytest.importorskip("grpc")

SCHEMA = {"obs": Array(3, final=True), "number": Array((), "int64"), "actor": Array((), "int64")}


@pytest.fixture
def store():
    return stepwell.create(":memory:", SCHEMA, capacity=100_000)
