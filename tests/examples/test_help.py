"""Every example says what it does and what can be set, and is described in the README of the examples."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples train with PyTorch")
pytest.importorskip("gymnasium", reason="the examples play tasks of Gymnasium")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_there_are_examples() -> None:
    assert len(NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith("sb3"):
        pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    if name.endswith("_jax.py"):
        pytest.importorskip("jax", reason="JAX is not installed")
    spec = importlib.util.spec_from_file_location(f"example_{name.removesuffix('.py')}", EXAMPLES / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert module.__doc__.splitlines()[0].split(":")[0] in printed.replace("\n", " ")
    assert "--seed" in printed and "--out" in printed
    # every one has a text: argparse puts the default behind it
    assert printed.count("(default:") >= printed.count("\n  --") - 2


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_shows_how_to_run_it(name: str) -> None:
    assert f"python examples/{name}" in (EXAMPLES / "README.md").read_text()
