"""A manifest that seems to hold a secret is refused, without a word of it; lookalikes pass.

The fake secrets are put together here, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
import random
import re
import resource
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.diagnostics import MAX_FILE_BYTES, Problem
from reconciler.base.errors import InvalidError
from reconciler.manifests import secrets as searching
from reconciler.manifests.secrets import may_hold_secrets, without_secrets
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import Reconcile
from reconciler.model.naming import identity
from tests.support.repository import Repository

ALNUM = string.ascii_letters + string.digits


def noise(length: int, alphabet: str = ALNUM, seed: int = 7) -> str:
    """Return the same random text each time, with a digit and, if present, letters of both cases."""
    return "".join(random.Random(seed).choices(alphabet, k=length))


def dashed(*parts: str) -> str:
    return "-".join(parts)


JWT = (
    ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "x"})
    )
    + "."
    + noise(43)
)
PEM = "-----BEGIN {}PRIVATE KEY-----"

KNOWN = [
    ("a private key", PEM.format("")),
    ("a private key", PEM.format("RSA ")),
    ("a private key", PEM.format("OPENSSH ")),
    ("a private key", PEM.format("ENCRYPTED ")),
    ("a private key", "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----"),
    ("a private key", json.dumps({"private_key": PEM.format("") + "\nMII"})),
    ("a Google API key", "AIza" + noise(35)),
    ("a Google access token", "ya29." + noise(60)),
    ("a Google refresh token", "1//0" + noise(60)),
    ("a Google client secret", "GOCSPX-" + noise(28)),
    *(("a GitHub token", f"gh{letter}_" + noise(36)) for letter in "pousr"),
    ("a GitHub token", "github_pat_" + noise(22) + "_" + noise(59)),
    ("a GitLab token", dashed("glpat", noise(20))),
    ("a Slack token", dashed("xoxb", noise(12, string.digits), noise(24))),
    (
        "a Slack webhook",
        "https://hooks.slack.com/services/" + "/".join(["T" + noise(9), "B" + noise(9), noise(24)]),
    ),
    ("an AWS access key", "AKIA" + noise(16, string.ascii_uppercase + "234567")),
    ("a Hugging Face token", "hf_" + noise(34)),
    ("an Anthropic key", dashed("sk", "ant", "api03", noise(80))),
    ("an OpenAI key", dashed("sk", "proj", noise(60))),
    ("an OpenAI key", dashed("sk", noise(48))),
    ("a Weights & Biases key", "wandb_v1_" + noise(70)),
    ("a Databricks token", "dapi" + noise(32, "0123456789abcdef")),
    ("an npm token", "npm_" + noise(36)),
    ("a PyPI token", dashed("pypi", noise(80))),
    ("a Stripe key", "sk_live_" + noise(24)),
    ("a signed token (JWT)", JWT),
    ("an Azure storage key", "AccountName=x;AccountKey=" + noise(86) + "=="),
    ("a password in an address", "postgres://trainer:" + noise(10) + "@db:5432/x"),
]

PASS = [
    "sha256:" + noise(64, "0123456789abcdef"),
    noise(40, "0123456789abcdef"),
    noise(64, "0123456789abcdef"),
    "us-docker.pkg.dev/p/r/i@sha256:" + noise(64, "0123456789abcdef"),
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "gs://bucket/path:with@sign/x",
    "projects/p/secrets/s/versions/1",
    "trainer@project.iam.gserviceaccount.com",
    "https://user@example.com/x",
    "https://host:8080/a@b",
    "https://host/?q=a:b@c",
    "https://user:$(PASSWORD)@host",
    "https://user:<password>@host",
    "https://user:password@host",
    "https://user:***@host",
    base64.b64encode(b'{"epochs": 10, "rate": 0.1, "layers": [64, 64]}').decode(),
    "ghp_" + "x" * 36,
    "disk-proj-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "risk-" + noise(50),
    "glpat",
    "eyJhbGciOiJIUzI1NiJ9",
    "-----BEGIN PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----",
    "AKIA-like",
    "hf_model_name_of_some_length_and_more_words",
]
RANDOM = noise(24)

NAMED = [
    "HF_TOKEN",
    "DB_PASSWORD",
    "db-passwd",
    "CLIENT_SECRET",
    "WANDB_API_KEY",
    "apiKey",
    "APIKEY",
    "AWS_SECRET_ACCESS_KEY",
    "accessKey",
    "SIGNING_PRIVATE_KEY",
    "SERVICE_CREDENTIAL",
    "GCP_CREDENTIALS",
    "TOKEN",
    "API_KEY_2",
    "PASSPHRASE",
]
NOT_NAMED = [
    "SEED",
    "MAX_TOKENS",
    "TOKENIZER",
    "TOKEN_FILE",
    "SECRET_NAME",
    "PASSWORD_PATH",
    "API_KEY_ID",
    "KEYBOARD",
    "DATASET_HASH",
    "tokens",
    "SECRETARY",
    "COMPASS_WORD",
    "API_KEY_VERSION",
    "MONKEY",
]
RANDOM_VALUES = [
    RANDOM,
    noise(40, "0123456789abcdef"),
    noise(12),
    base64.b64encode(random.Random(1).randbytes(32)).decode(),
    "Tr0ub4dor&3" + "-horse",
]
HARMLESS_VALUES = [
    "",
    "changeme",
    "xxxxxxxxxxxxxxxxxxxx",
    "$(HF_TOKEN_VALUE)",
    "${TOKEN_OF_TRAINER}",
    "<your token goes here>",
    "{{ secrets.TOKEN_1a2b3c }}",
    "projects/p-123abc/secrets/s/versions/1",
    "gs://bucket-1a2b3c/token-9f8e7d",
    "/var/secrets/4f5e6d/token",
    "~/.config/gcloud/credentials.json",
    "replace-me-1a2b3c4d5e",
    "sha256:" + noise(64, "0123456789abcdef"),
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "not-set-1a2b3c4d",
]


WRITTEN_OUT = [
    "x",
    "hunter2",
    "trainerSecretName2",
    "hf-token-of-the-trainer",
    "correct horse battery staple",
]
LITERAL_FLAGS = ["password", "db-password", "db_passwd", "token", "api-key", "openai-api-key", "access-token"]
CONTAINER = "/spec/workerPoolSpecs/0/containerSpec"


def manifest(**spec: Any) -> dict[str, Any]:
    container = {"imageUri": "example.com/trainer:1", **spec}
    pool = {
        "machineSpec": {"machineType": "n1-standard-8"},
        "replicaCount": 1,
        "containerSpec": container,
    }
    return {
        "apiVersion": "aiplatform.googleapis.com/v1",
        "kind": "CustomJob",
        "metadata": {"name": "census"},
        "spec": {"workerPoolSpecs": [pool]},
    }


def problems(root: Path, value: Any) -> tuple[Problem, ...]:
    file = root / "jobs" / "job.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False))
    return validate(root, [root / "jobs"]).problems


def env(name: str, value: str) -> dict[str, Any]:
    return manifest(env=[{"name": "FIRST", "value": "1"}, {"name": name, "value": value}])


@pytest.mark.slow
@pytest.mark.fault(46)
@pytest.mark.parametrize(("kind", "secret"), KNOWN)
def test_a_known_shape_is_refused_wherever_it_stands(tmp_path: Path, kind: str, secret: str) -> None:
    text = json.dumps(manifest(args=["--epochs=3"]), indent=1)
    for where in (
        json.dumps(env("ORDINARY", secret), indent=1),
        json.dumps(manifest(args=[f"--x={secret}"]), indent=1),
        text.replace('"census"', json.dumps(secret)),
        text.replace('"name": "census"', f'"name": "census", "labels": {{"a": {json.dumps(secret)}}}'),
        text + f"\n# {secret}\n",
        f"reconcile: {{rerun: {json.dumps(secret)}}}\n",
        f"text: |\n  some words, and\n  {secret}\n",
        f"broken: [ {secret}\n",
    ):
        (problem,) = problems(tmp_path, where)
        assert problem.message == f"this looks like {kind}"
        assert "Secret Manager" in problem.hint
        there = where.splitlines()[problem.line - 1][problem.column - 1 :][:5]
        assert there in secret + json.dumps(secret)
        assert_unsaid(secret, problem)


def assert_unsaid(secret: str, *told: Problem) -> None:
    """Check that the output contains no part of a secret of a given length."""
    parts = {secret[at : at + 8] for at in range(len(secret) - 7)}
    words = "".join(f"{problem.message} {problem.hint} {problem.pointer}" for problem in told)
    assert not {part for part in parts if part in words}


@pytest.mark.parametrize("text", PASS)
def test_what_only_looks_alike_passes(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, env("ORDINARY", text)) == ()
    assert problems(tmp_path, manifest(args=[f"--data={text}", text], command=["run", text])) == ()


@pytest.mark.slow
@pytest.mark.fault(46)
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("value", RANDOM_VALUES)
def test_a_random_value_is_refused_where_its_name_says_secret(tmp_path: Path, name: str, value: str) -> None:
    option = name.lower().replace("_", "-")
    for document, pointer in (
        (env(name.replace("-", "_"), value), "env/1/value"),
        (manifest(args=["a", f"--{option}={value}"]), "args/1"),
        (manifest(args=[f"--{option}", value]), "args/1"),
        (manifest(args=[f"-{option}", value]), "args/1"),
        (
            manifest(command=["sh", "-c", f"export X_TOKEN='{value.replace('&', 'a')}'; python -m x"]),
            "command/2",
        ),
        (manifest(command=["sh", "-c", f"train --{option} {value.replace('&', 'a')}"]), "command/2"),
    ):
        (problem,) = problems(tmp_path, document)
        assert problem.message.startswith('the value of "')
        assert problem.pointer == f"/spec/workerPoolSpecs/0/containerSpec/{pointer}"
        assert value[:6] in (tmp_path / "jobs/job.yaml").read_text().splitlines()[problem.line - 1]
        assert_unsaid(value, problem)


@pytest.mark.parametrize("name", NOT_NAMED)
def test_a_random_value_passes_under_another_name(tmp_path: Path, name: str) -> None:
    for value in RANDOM_VALUES:
        assert problems(tmp_path, env(name, value)) == ()
        assert problems(tmp_path, manifest(args=[f"--{name.lower()}={value}", f"--{name}", value])) == ()


@pytest.mark.slow
@pytest.mark.parametrize("value", HARMLESS_VALUES)
def test_what_stands_for_a_secret_passes(tmp_path: Path, value: str) -> None:
    for name in NAMED:
        name = name.replace("-", "_")
        assert problems(tmp_path, env(name, value)) == ()
        assert problems(tmp_path, manifest(args=[f"--{name}={value}", f"--{name}", value or "-"])) == ()


@pytest.mark.parametrize("value", WRITTEN_OUT)
def test_words_pass_under_names_that_only_suggest_a_secret(tmp_path: Path, value: str) -> None:
    for name in ("HF_TOKEN", "CLIENT_SECRET", "WANDB_API_KEY"):
        assert problems(tmp_path, env(name, value)) == ()
    for flag in ("eos-token", "signing-key"):
        assert problems(tmp_path, manifest(args=[f"--{flag}={value}", f"--{flag}", value])) == ()


@pytest.mark.parametrize("value", WRITTEN_OUT)
@pytest.mark.parametrize("flag", LITERAL_FLAGS)
def test_any_text_behind_a_flag_for_a_password_counts_as_a_secret(
    tmp_path: Path, flag: str, value: str
) -> None:
    for args, at in (([f"--{flag}={value}"], 0), ([f"--{flag}", value], 1), ([f"-{flag}", value], 1)):
        (problem,) = problems(tmp_path, manifest(args=args))
        assert problem.pointer == f"{CONTAINER}/args/{at}"
        assert problem.message == f'the value of "{flag}" looks like a secret'


@pytest.mark.parametrize("name", ["DB_PASSWORD", "PASSWORD", "REDIS_PWD"])
@pytest.mark.parametrize("value", WRITTEN_OUT)
def test_any_text_of_a_variable_for_a_password_counts_as_a_secret(
    tmp_path: Path, name: str, value: str
) -> None:
    (problem,) = problems(tmp_path, env(name, value))
    assert problem.pointer == f"{CONTAINER}/env/1/value"


@pytest.mark.parametrize(
    "args",
    [
        ["--password=$DB_PASSWORD"],
        ["--password", "$(DB_PASSWORD)"],
        ["--password=projects/p/secrets/db/versions/latest"],
        ["--password=/secrets/db/password"],
        ["--password", "--verbose"],
        ["--password="],
        ["--token=<eos>"],
        ["--token", "[PAD]"],
        ["--password-file=hunter2"],
        ["--max-tokens=512"],
        ["--tokenizer", "bpe"],
        ["token", "hunter2"],
    ],
)
def test_a_reference_and_another_flag_are_no_secret(tmp_path: Path, args: list[str]) -> None:
    assert problems(tmp_path, manifest(args=args)) == ()


def exempting(document: dict[str, Any], *pointers: str) -> dict[str, Any]:
    return {**document, "reconcile": {"notSecret": [*pointers]}}


@pytest.mark.parametrize("secret", ["hunter2", RANDOM, "hf_" + noise(34)])
def test_a_value_that_the_manifest_calls_no_secret_passes_and_others_do_not(
    tmp_path: Path, secret: str
) -> None:
    document = manifest(args=["--password", secret])
    assert len(problems(tmp_path, document)) == 1
    assert problems(tmp_path, exempting(document, f"{CONTAINER}/args/1")) == ()
    document = manifest(args=["--password", secret, "--token=another-one"])
    (problem,) = problems(tmp_path, exempting(document, f"{CONTAINER}/args/1"))
    assert problem.pointer == f"{CONTAINER}/args/2"


def test_the_hint_gives_the_pointer_that_exempts_the_value(tmp_path: Path) -> None:
    document = manifest(args=["--password=hunter2"])
    (problem,) = problems(tmp_path, document)
    assert f'add "{problem.pointer}" to the list "notSecret" under "reconcile"' in problem.hint
    assert problems(tmp_path, exempting(document, problem.pointer)) == ()


@pytest.mark.parametrize(
    ("pointer", "message", "hint"),
    [
        (f"{CONTAINER}/args/7", "there is no value at", "correct the pointer, or remove it"),
        (f"{CONTAINER}/args/1", "the value at", "remove it"),
        (f"{CONTAINER}/args", "the value at", "remove it"),
        ("/spec/nothing", "there is no value at", "correct the pointer, or remove it"),
        ("args/0", '"args/0" is not a JSON pointer', "begin it with a slash"),
    ],
)
def test_a_pointer_that_exempts_nothing_is_a_mistake_at_its_place(
    tmp_path: Path, pointer: str, message: str, hint: str
) -> None:
    document = exempting(manifest(args=["--password=hunter2", "plain"]), f"{CONTAINER}/args/0", pointer)
    (problem,) = problems(tmp_path, document)
    assert (problem.pointer, problem.hint) == ("/reconcile/notSecret/1", hint)
    assert problem.message.startswith(message)
    line = (tmp_path / "jobs/job.yaml").read_text().splitlines()[problem.line - 1]
    assert line[problem.column - 1 :].startswith(json.dumps(pointer))


def test_a_name_does_not_depend_on_what_is_called_no_secret(tmp_path: Path) -> None:
    document = manifest(args=["--password=hunter2", "--token=x"])
    pointers = [f"{CONTAINER}/args/0", f"{CONTAINER}/args/1"]
    names = set()
    for order in (pointers, pointers[::-1]):
        assert problems(tmp_path, exempting(document, *order)) == ()
        (found,) = validate(tmp_path, [tmp_path / "jobs"]).manifests
        names.add(identity(found, found.spec, ""))
    plain = identity(replace(found, reconcile=Reconcile()), found.spec, "")
    assert names == {plain}


def test_a_file_with_a_secret_tells_nothing_else(tmp_path: Path) -> None:
    """Any other problem might quote it."""
    secret = "hf_" + noise(34)
    wrong = (
        f"kind: {secret}\napiVersion: {secret}\n{secret}: 1\n---\nmetadata: {{name: {secret}}}\na: 1\na: 2\n"
    )
    told = problems(tmp_path, wrong)
    assert [problem.line for problem in told] == [1, 2, 3, 5]
    assert {problem.message for problem in told} == {"this looks like a Hugging Face token"}
    assert_unsaid(secret, *told)


def test_the_other_files_are_checked_all_the_same(tmp_path: Path) -> None:
    problems(tmp_path, manifest(env=[{"name": "A", "value": "hf_" + noise(34)}]))
    (tmp_path / "jobs" / "other.yaml").write_text(json.dumps(manifest()))
    (tmp_path / "jobs" / "wrong.yaml").write_text("kind: Pod\n")
    found = validate(tmp_path, [tmp_path / "jobs"])
    assert [manifest.path for manifest in found.manifests] == ["jobs/other.yaml"]
    assert [problem.path for problem in found.problems][:2] == ["jobs/job.yaml", "jobs/wrong.yaml"]


def test_line_and_column_count_as_editors_do(tmp_path: Path) -> None:
    secret = "hf_" + noise(34)
    (tmp_path / "jobs").mkdir()
    text = f"\ufeffkind: CustomJob\r\nä: 'é {secret}'\r\nb: {secret}\r\n"
    (tmp_path / "jobs" / "job.yaml").write_bytes(text.encode())
    told = validate(tmp_path, [tmp_path / "jobs"]).problems
    assert [(problem.line, problem.column) for problem in told] == [(2, 7), (3, 4)]


def test_settings_hold_no_secret_either(tmp_path: Path) -> None:
    secret = "hf_" + noise(34)
    (tmp_path / "reconciler.yaml").write_text(f"source: a\ntoken: {secret}\n")
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (2, 8)
    assert_unsaid(secret, problem)


def test_an_alias_of_a_secret_is_told_once(tmp_path: Path) -> None:
    document = "a: &a\n  - {name: TOKEN, value: " + RANDOM + "}\n" + "".join(f"k{n}: *a\n" for n in range(50))
    (problem,) = problems(tmp_path, document)
    assert (problem.line, problem.pointer) == (2, "/a/0/value")


@pytest.mark.fault(46)
@pytest.mark.parametrize("command", ["validate", "plan", "apply"])
@pytest.mark.parametrize("flags", [[], ["--format", "json"], ["--log-format", "json", "-v"]])
def test_every_command_refuses_it_unsaid(repository: Repository, command: str, flags: list[str]) -> None:
    secret = "hf_" + noise(34)
    repository.job(args=[f"--hub={secret}"])
    done = repository.run(command, *flags)
    assert done.code == 3
    assert "jobs/census.yaml" in done.out + done.err
    assert "Hugging Face" in done.out + done.err
    assert noise(34)[:8] not in done.out + done.err
    assert not (repository.home / "service.json").exists()


def test_annotations_do_not_quote_it(repository: Repository) -> None:
    repository.job(args=["--password", RANDOM])
    done = repository.run("validate", "--format", "github")
    assert done.code == 3
    assert done.out.startswith("::error file=jobs/census.yaml,line=")
    assert RANDOM[:8] not in done.out


@given(st.text(max_size=200))
def test_any_text_is_looked_through(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("any")
    for found in problems(root, json.dumps(env("API_KEY", text))):
        assert_unsaid(text, found) if len(text) > 11 else None


# --- The quick check ------------------------------------------------------------------------------------

AROUND = st.text(max_size=6) | st.sampled_from(
    [
        "",
        " ",
        "x: ",
        "- ",
        "# ",
        "'",
        '"',
        "=",
        "\r",
        "\r\n",
        "\n",
        "\ufeff",
        "\ufffd",
        "\u017f",
        "\u212a",
        "_",
        "-",
    ]
)
NAMES = st.sampled_from([*NAMED, *NOT_NAMED, "K", "tOkEn", "PASSWORD value", "pwd.1", "a-key-2", "key_value"])


@st.composite
def suspicious(draw: st.DrawFn) -> bytes:
    """Draw texts with the exact or near shape or name of a secret, in any surroundings."""
    shape = draw(st.sampled_from(searching._SHAPES))
    parts = draw(
        st.lists(
            st.sampled_from([secret for _, secret in KNOWN] + PASS)
            | st.from_regex(re.compile(shape.pattern, re.ASCII))
            | NAMES.flatmap(
                lambda name: st.sampled_from(
                    [
                        f"{name}: {RANDOM}",
                        f"--{name}={RANDOM}",
                        f"[--{name}, {RANDOM}]",
                        f"{{name: {name}, value: {RANDOM}}}",
                    ]
                )
            ),
            min_size=1,
            max_size=2,
        )
    )
    data = "".join(draw(AROUND) + part + draw(AROUND) for part in parts).encode("utf-8", "replace")
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.sampled_from([b"", b"", b"", b"\xff", b"\xe2\x80", b"x", b"\n"])) + data[at:]


@pytest.mark.slow
@pytest.mark.fault(46)
@settings(max_examples=80)
@given(suspicious())
@example(b"://\xc2\xa0:abc@")
@example(b"://a\x1c:abc@")
@example("x_key\u017f: 1".encode())
def test_where_the_quick_look_sees_nothing_there_is_nothing(data: bytes) -> None:
    shaped = [shape for shape in searching._SHAPES if any(shape.found_in(data.decode("utf-8", "replace")))]
    values = [document.value for document in load_documents(data, "x")[0]]
    if shaped or any(searching._NamedSecrets().find(values)):
        assert may_hold_secrets(data)


@pytest.mark.fault(46)
@pytest.mark.parametrize("secret", [secret for _, secret in KNOWN])
def test_the_quick_look_sees_each_known_shape(secret: str) -> None:
    assert may_hold_secrets(f"a: {secret}\n".encode())
    assert may_hold_secrets(f"# {secret}".encode() + b"\xff\n")


@pytest.mark.parametrize("name", NAMED)
def test_the_quick_look_sees_each_name(name: str) -> None:
    for line in (f"{name}: x", f"- --{name.lower()}", f"{{name: {name}, value: x}}", name):
        assert may_hold_secrets(line.encode())


def test_the_quick_look_is_done_with_what_most_files_hold() -> None:
    value = manifest(
        args=["--data=gs://bucket/train-*.tfrecord", "--max-tokens=10", "--tokenizer=risk-model-of-the-team"],
        env=[
            {"name": name, "value": "x:y@z"} for name in ("MAX_TOKENS", "KEYBOARD", "TOKEN_FILE", "SECRETARY")
        ],
        imageUri="us-docker.pkg.dev/p/r/i@sha256:" + noise(64, "0123456789abcdef"),
    )
    value["spec"]["serviceAccount"] = "trainer@project.iam.gserviceaccount.com"
    assert not may_hold_secrets(json.dumps(value).encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "eyJ",
        "eyJaaaaaaaaaa.",
        "://",
        "://a:",
        "-----BEGIN A ",
        "--",
        "--token=",
        "a=",
        "sk-ant-",
        "TOKEN ",
        "xox",
    ],
)
def test_no_text_takes_long(tmp_path: Path, unit: str) -> None:
    """Check 200 KB of each pattern's beginning: quadratic work would take minutes of processor time."""
    (tmp_path / "jobs").mkdir()
    text = unit * (200_000 // len(unit))
    (tmp_path / "jobs" / "a.yaml").write_text(
        f"# {text}\ntoken:\n" + "".join(f"  - '{text[:60_000]}'\n" for _ in range(3))
    )
    validate_within(10, tmp_path)


@pytest.mark.slow
@pytest.mark.fault(37)
@pytest.mark.parametrize(
    "unit",
    ["password=", "password=$", "--token=", "a=", "token=aaaaaaaaaaa1 ", "-----BEGIN PPPPPPPPPPPPPPPPPPPP"],
)
def test_search_of_largest_file_takes_linear_time(tmp_path: Path, unit: str) -> None:
    """The search takes at most 2 s of these 30 s; the rest leaves room for slow machines."""
    text = (unit * (60_000 // len(unit))).strip()
    document = f"# {text}\n---\na:\n" + f"  - '{text}'\n" * 3
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.yaml").write_text(document * (MAX_FILE_BYTES // len(document)))
    validate_within(30, tmp_path)


def validate_within(seconds: int, root: Path) -> None:
    """Validate a repository in a process that ends after a given processor time in seconds."""
    code = "import sys; from pathlib import Path; from reconciler.manifests.validate import validate; "
    code += "validate(Path(sys.argv[1]), [Path(sys.argv[1])])"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    subprocess.run([sys.executable, "-c", code, str(root)], check=True, preexec_fn=limit)


def test_file_with_more_secret_names_than_the_search_looks_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = manifest(args=["--hub-token=the-words-of-a-token"] * 4)
    monkeypatch.setattr(searching, "MAX_SECRETIVE", 4 * 300)
    assert problems(tmp_path, value) == ()
    monkeypatch.setattr(searching, "MAX_SECRETIVE", 4 * 300 - 1)
    (problem,) = problems(tmp_path, value)
    assert problem.message == "the file has too many values whose names look like secrets"
    assert (problem.line, problem.hint) == (1, "split it")


@pytest.mark.parametrize(
    "text",
    [
        f"--hub=https://host/?a=1&token={RANDOM}",
        f"token=the-words&password={RANDOM}",
        f"--api-key=https://host/?token={RANDOM}",
        f"TOKEN=$HOME;password={RANDOM}",
        f"--set=password={RANDOM}",
    ],
)
def test_secret_is_found_inside_another_value(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, manifest(args=[text]))
    assert problem.message.startswith('the value of "')
    assert_unsaid(RANDOM, problem)


@pytest.mark.parametrize("secret", [secret for _, secret in KNOWN])
def test_a_known_shape_is_hidden_for_display(secret: str) -> None:
    shown = without_secrets(
        {"args": [f"--x={secret}", f"before {secret} behind"], "env": [{"value": secret}]}
    )
    assert len(secret) < 12 or secret not in json.dumps(shown, ensure_ascii=False)
    assert "***" in shown["args"][1]
    assert shown["args"][1].startswith("before ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"env": [{"name": "DB_PASSWORD", "value": "hunter2"}]}, "***"),
        ({"env": [{"name": "MODE", "value": "fast"}]}, "fast"),
        ({"env": [{"name": "API_KEY", "value": "$(KEY)"}]}, "$(KEY)"),
        ({"dbPassword": "hunter2"}, "***"),
        (["--password", "hunter2"], "***"),
        (["--token", "--verbose"], "--verbose"),
        (["--password=hunter2"], "--password=***"),
        (["--max-tokens=30"], "--max-tokens=30"),
        (["--hub=https://host/?a=1&token=abc"], "--hub=https://host/?a=1&token=***"),
        (["run --api-key 'a b' --epochs=3"], "run --api-key '*** b' --epochs=3"),
        ([3], 3),
        (["key: -----BEGIN PRIVATE KEY-----\nMIIEvQ"], "key: ***"),
    ],
)
def test_the_value_of_a_secret_name_is_hidden_for_display(value: Any, shown: Any) -> None:
    found = without_secrets(value)
    while isinstance(found, dict | list):
        found = [*found.values()][-1] if isinstance(found, dict) else found[-1]
    assert found == shown


@pytest.mark.parametrize("name", ["TRAINER_TOKEN", "hubPassword"])
@pytest.mark.parametrize("value", RANDOM_VALUES)
def test_whatever_is_refused_would_be_hidden(tmp_path: Path, name: str, value: str) -> None:
    for where in (
        env(name, value),
        manifest(args=[f"--{name}={value}"]),
        manifest(args=[f"--{name}", value]),
    ):
        assert problems(tmp_path, where)
        assert value not in json.dumps(without_secrets(where))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["--", "--token=", "a=", "a-", "TOKEN ", "--a ", "://a:"])
def test_hiding_takes_linear_time(unit: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    without_secrets([unit * (1_000_000 // len(unit))])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10
