"""`import kit` and `kit --help` are quick because they load nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "mujoco", "gymnasium", "stable_baselines3", "pandas", "numpy")


@pytest.mark.parametrize(
    "code",
    ["import kit; kit.RunConfig()", "import kit; kit.runs('nowhere')", "import kit.cli", "import kit.scale.files",
     "import kit.scale.execute"],
)  # fmt: skip
def test_light_imports(code):
    check = f"{code}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_of_the_index_exists():
    import kit

    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError):
        _ = kit.nothing
