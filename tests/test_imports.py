"""Tests of `import kit` and `kit.cli`: they import no heavy package, and all names in `kit.__all__` exist."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "mujoco", "gymnasium", "stable_baselines3", "pandas", "numpy")
LINES = (
    "import kit; kit.RunConfig()", "import kit; kit.runs('nowhere')", "import kit.cli", "import kit.scale.files",
    "import kit.scale.execute",
)  # fmt: skip
COMMANDS = (
    "train --env Reech", "train --algo PPPO", "train --n-envs 0", "train nowhere.yaml", "resume nowhere",
    "runs nowhere", "evaluate nowhere", "video nowhere", "export nowhere", "push nowhere hf://you/model",
    "view nowhere",
)  # fmt: skip


def test_imports_without_heavy_packages():
    """One after the other in one process: a package that a line imports is named beside it and all later ones."""
    code = f"import sys\nfor line in {LINES!r}:\n    exec(line)\n"
    code += f"    print(line, [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{line} []" for line in LINES]


def test_typos_are_refused_before_torch_is_imported(tmp_path):
    """One after the other in one process, as above."""
    code = "import sys\nfrom kit.cli import main\n"
    code += f"for command in {COMMANDS!r}:\n    try:\n        main(command.split())\n"
    code += "    except SystemExit as ended:\n        print(command, ended.code, 'torch' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == [f"{command} 2 False" for command in COMMANDS], done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(COMMANDS) and all(line.startswith("kit: ") for line in said)


def test_every_name_in_all_exists():
    import kit

    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError):
        _ = kit.nothing
