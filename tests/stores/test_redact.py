"""Tests of `redact`: tokens and keys are hidden; names, paths and ids stay, so that runs can be opened again."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import string
import uuid

import pytest
import yaml

import kit
from kit.stores.redact import may_be_unredacted, one_line, redact, redact_bytes

dice = random.Random(0)
WORD, UPPER = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits


def draw(letters: str, count: int) -> str:
    """Return `count` characters: random ones from `letters`, then 7Q, so that a digit and a capital are included."""
    return "".join(dice.choices(letters, k=count - 2)) + "7Q"


def innocent() -> list[str]:
    """Return typical names, paths and ids; none contains a secret, but many look like one."""
    tasks = ["reach", "task-reach", "disk-cleaning", "desk-push", "risk-aware-walk", "mask-rcnn-pick", "flask-pour"]
    tails = ["ppo-baseline", "sac_large_512x512", "a2c-2026-11-22-final", "with-a-very-long-name-of-a-variant", "v2"]
    ends = ["", "-seed12", "_0003"]
    names = [f"{task}-{tail}{end}" for task, tail, end in itertools.product(tasks, tails, ends)]
    shapes = [
        "pick-task-reach-ppo-baseline", "sk-reach-ppo-baseline-with-long-name", "sk-hyperparameteroptimization-v2",
        "sk-reach-3fa9c2d41b7e8f60",
        "hf_pretrained_encoder_large_v2", "hf_transformers", "my_hf_baseline2026experiment12", "shelf_cleaning_run",
        "ghp_reach_ppo_baseline_2026", "high_performance_gripper_run", "gho_st-town", "weighs_everything_twice",
        "github_pat_rotation_reminder_script", "AKIRA-2026", "ASIA_PACIFIC_RUN_2026", "rpa_robot_process_automation",
        "xoxo-hugs-and-kisses", "bearer-of-bad-news", "yacht29.sailing", "AIzawa-lab-reach", "glass-patting",
        "task.hf_model", "risk-550e8400-e29b-41d4-a716-446655440000", "user@host:/data/runs/reach",
        "git@github.com:someone/robots.git", "https://host:8080/a@b", "key=value",
    ]  # fmt: skip
    shapes += ["Bearer authentication failed", "the Bearer of this letter"]
    hashes = [hashlib.new(kind, str(n).encode()).hexdigest() for kind in ("sha1", "sha256", "md5") for n in range(40)]
    ids = [str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(40)]
    steps = [f"checkpoints/step_{dice.randrange(10**9):09d}/policy.safetensors" for _ in range(20)]
    paths = [f"s3://bucket-{dice.randrange(99)}/{name}/{step}" for name, step in zip(names, steps, strict=False)]
    paths += [f"/mnt/{dice.choice(ids)}/runs/{name}" for name in names[:30]]
    paths += [f"hf://me/robots/{name}" for name in names[:30]] + [f"drive:lab/{name}" for name in names[:30]]
    commits = [f"v0.1.0-{n}-g{digest[:12]}-dirty" for n, digest in enumerate(hashes[:40])]
    glued = [f"ta{mark}{digest}" for mark in ("sk-", "hf_", "ghp_", "rpa_") for digest in hashes[:10]]
    return [*names, *shapes, *hashes, *ids, *steps, *paths, *commits, *glued, *(f"reach-{h[:12]}" for h in hashes[:40])]


SECRETS = {
    "Hugging Face": f"hf_{draw(WORD, 34)}",
    "OpenAI": f"sk-{draw(WORD, 48)}",
    "OpenAI project": f"sk-proj-{draw(WORD, 60)}_{draw(WORD, 30)}-{draw(WORD, 20)}",
    "Anthropic": f"sk-ant-api03-{draw(WORD + '-_', 93)}",
    "OpenRouter": f"sk-or-v1-{hashlib.sha256(b'x').hexdigest()}",
    **{f"GitHub gh{kind}": f"gh{kind}_{draw(WORD, 36)}" for kind in "pousr"},
    "GitHub fine": f"github_pat_{draw(WORD, 22)}_{draw(WORD, 59)}",
    "AWS": f"AKIA{draw(UPPER, 16)}",
    "AWS for a session": f"ASIA{draw(UPPER, 16)}",
    "AWS with its secret": f"AKIA{draw(UPPER, 16)}:{draw(WORD + '/+', 40)}",
    "RunPod": f"rpa_{draw(UPPER, 40)}",
    "Google": f"ya29.{draw(WORD + '-_', 120)}",
    "Google API": f"AIza{draw(WORD + '-_', 35)}",
    "GitLab": f"glpat-{draw(WORD + '-_', 20)}",
    **{f"Slack {kind}": f"xox{kind}-{dice.randrange(10**11)}-{draw(WORD, 24)}" for kind in "abp"},
}
PLACES = [
    "{}",
    "the server said: {} is not allowed, see the manual.",
    "it refuses {}.",
    "token '{}' and \"{}\"",
    '{"message": "first line\\n{}", "list": ["{}", 5]}',
    "store:\n  key: {}\n  other: [{}, x]\n",
    "https://host/v1/{}/x",
    "https://host/x?key={}&v=1",
    "https://host/login?next=%2Fx%3Fkey%3D{}%26v%3D1",
    "https://{}@host/x",
    "export KEY={}; run",
    "({})[{}]<{}>",
]


def put(word: str, place: str) -> str:
    return place.replace("{}", word)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


def test_names_paths_and_ids_survive() -> None:
    names = innocent()
    assert len(set(names)) > 500
    for name in names:
        for place in ("{}", "runs/{}/config.yaml cannot be read.", '{"name": "{}"}', "run_name: {}\n", "a,{},b"):
            assert redact(put(name, place)) == put(name, place)


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_no_token_survives(secret: str) -> None:
    for place in PLACES:
        assert redact(put(secret, place)) == put("(hidden)", place)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer eyJabc.def.ghi-JK", "Authorization: Bearer (hidden)"),
        ('{"authorization": "Bearer abcdef0123456789"}', '{"authorization": "Bearer (hidden)"}'),
        ("https://s3/x?X-Amz-Signature=abc123&v=1", "https://s3/x?(hidden)&v=1"),
        (
            "https://s3/x?v=1&X-Amz-Credential=AKIA%2F2026&X-Amz-Security-Token=Fwo",
            "https://s3/x?v=1&(hidden)&(hidden)",
        ),
        ("'https://cdn/x?Signature=a~b&Key-Pair-Id=K2', gone", "'https://cdn/x?(hidden)&(hidden)', gone"),
        ("https://hub/lab?token=0123456789abcdef", "https://hub/lab?(hidden)"),
        ("https://u:pa55@host/x", "https://(hidden)@host/x"),
        ("redis://:pa55@host:6379", "redis://(hidden)@host:6379"),
    ],
)
def test_headers_signatures_and_passwords(text: str, clean: str) -> None:
    assert redact(text) == clean


def test_values_of_secret_variables_as_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("plain-words-0001", "wJalrXUtnFEMI/K7MDENG+x")
    kept = {"DB_PASSWORD": "short-one", "KEY_FILE_TOKEN": "/home/me/.token-file", "EDITOR": "plain-editor-1"}
    monkeypatch.setattr("os.environ", {"MY_API_KEY": secrets[0], "AWS_SECRET_ACCESS_KEY": secrets[1], **kept})
    for place, secret in itertools.product(PLACES, secrets):
        assert redact(put(secret, place)) == put("(hidden)", place)
    for name in ("plain-words-0001-seed3", "my-plain-words-0001", *kept.values()):
        assert redact(f"runs/{name}/x") == f"runs/{name}/x"


def test_plain_config_fields_may_equal_a_secret_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"HF_TOKEN": "reach-ppo-baseline", "WANDB_API_KEY": "0123456789abcdef0123"})
    token = f"hf_{draw(WORD, 34)}"
    options = {"key": "0123456789abcdef0123", "list": ["reach-ppo-baseline"]}
    config = {"version": 1, "env": "my_package:TaskReach", "run_name": "reach-ppo-baseline", "env_options": options}
    clean = yaml.safe_load(redact_bytes(yaml.safe_dump(config, sort_keys=False).encode(), "config.yaml"))
    assert clean == {**config, "env_options": {"key": "(hidden)", "list": ["(hidden)"]}}
    assert yaml.safe_load(redact_bytes(f"run_name: {token}\n".encode(), "config.yaml")) == {"run_name": "(hidden)"}
    status = json.dumps({"message": "reach-ppo-baseline is refused"}).encode()
    assert json.loads(redact_bytes(status, "status.json")) == {"message": "(hidden) is refused"}


def test_bytes_that_are_not_utf_8_stay() -> None:
    assert redact_bytes(b"\xff\xfe hf_") == b"\xff\xfe hf_"


def test_an_error_is_one_line() -> None:
    token = SECRETS["Hugging Face"]
    assert one_line(ValueError(f"a\nb  {token}")) == "a b (hidden)"
    assert len(one_line(ValueError("x" * 1000))) == 300
    assert token[:20] not in one_line(ValueError("x " * 140 + token)), "half a token is not recognised"
    assert one_line(KeyError()) == "KeyError"


def test_a_config_opens_again_without_its_secrets() -> None:
    """`store` and `tracker` become None; in long texts, which YAML wraps, tokens are redacted too."""
    token = SECRETS["Hugging Face"]
    options = {"deep": [{"key": f"a long text before what nobody may see, and then: Bearer {token}"}], token: 1}
    config = kit.RunConfig(env_options=options, store=f"s3://b/x?token={token}", tracker=f"wandb:{token}")
    sent = redact_bytes(config.to_yaml().encode(), "config.yaml").decode()
    assert token not in sent
    opened = kit.RunConfig.from_yaml(sent)
    assert (opened.store, opened.tracker) == (None, None)
    hidden = "a long text before what nobody may see, and then: Bearer (hidden)"
    assert opened.env_options == {"deep": [{"key": hidden}], "(hidden)": 1}
    assert opened.replace(env_options={}, store=None, tracker=None) == kit.RunConfig()


@pytest.mark.parametrize(
    ("whole", "can_be"),
    [
        ({"n": 3, "key": "Bearer x"}, True),
        ({"n": 3, "key": "Bearer (hidden)"}, False),
        ({"n": 4, "key": "Bearer x"}, False),
        ({"n": 3, "key": "x"}, False),
    ],
)
def test_restores_accepts_only_values_for_the_hidden_parts(whole: dict[str, object], can_be: bool) -> None:
    assert may_be_unredacted(whole, {"key": "Bearer (hidden)", "n": 3}) is can_be
