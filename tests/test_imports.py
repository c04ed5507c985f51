"""Tests of `import kit` and `kit.cli`: they import no heavy package, and all names in `kit.__all__` exist."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "mujoco", "gymnasium", "stable_baselines3", "pandas", "numpy")


@pytest.mark.parametrize(
    "code",
    ["import kit; kit.RunConfig()", "import kit; kit.runs('nowhere')", "import kit.cli", "import kit.scale.files",
     "import kit.scale.execute"],
)  # fmt: skip
def test_imports_without_heavy_packages(code):
    check = f"{code}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    ["train --env Reech", "train --algo PPPO", "train --n-envs 0", "train nowhere.yaml", "resume nowhere",
     "runs nowhere", "evaluate nowhere", "video nowhere", "export nowhere", "push nowhere hf://you/model",
     "view nowhere"],
)  # fmt: skip
def test_typos_are_refused_before_torch_is_imported(command, tmp_path):
    code = "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))\nfrom kit.cli import main\n"
    code += "main()"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert done.stderr.startswith("kit: ") and len(done.stderr.splitlines()) == 1


def test_every_name_in_all_exists():
    import kit

    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError):
        _ = kit.nothing
