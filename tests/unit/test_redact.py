"""Secrets are known by where they stand, and nothing that a terminal obeys comes through."""

import json
import re
import time

import pytest

from pdctl.redact import HIDDEN, clean, clean_json, clean_line, hide, hide_argv, hide_env, sounds_secret

SECRET_NAMES = re.findall(
    r"\S+",
    """
HF_TOKEN HUGGING_FACE_HUB_TOKEN HFTOKEN OPENAI_API_KEY OPENAI_API_KEY_1 APIKEY apiKey api_key DB_PASSWD PGPASSWORD
SSHPASS MYSQL_PWD AUTH HTTP_AUTH PROXY_AUTHORIZATION NPM_AUTH_TOKEN
GOOGLE_APPLICATION_CREDENTIALS AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
AWS_ACCESS_KEY_ID PDCTL_TRANSFER_SECRET CLIENT_SECRET MY_CREDS GITHUB_PAT SESSION_COOKIE KEYSTORE_PASSWORD API_TOKENS
--api-key --admin-api-key --tenant-api-key --control-plane-api-keys --oracle-password --hf-token --hf_token
--ssl-keyfile-password secret session.secret SSH_PASSPHRASE JWT
""",
)

HARMLESS_NAMES = re.findall(
    r"\S+",
    """
--tokenizer --tokenizer-path --tokenizer-mode --skip-tokenizer-init --tokenizer-cache-enable-l0 --max-total-tokens
--max-prefill-tokens --max-num-batched-tokens --speculative-num-draft-tokens --num-reserved-decode-tokens
--swa-full-tokens-ratio --dbo-decode-token-threshold --prefix-token-count --balance-token-usage-threshold
--worker-overload-token-usage --rate-limit-tokens-per-second --least-load-mean-prefill-tokens --speculative-token-map
--return-tokens-as-token-ids --eos-token --ssl-keyfile --client-key-path --tls-key-path --api-key-env --key-file
--routing-key-headers --routing-key-override --sticky-key-idle-secs --jwt-issuer --jwt-role-mapping --page-size
--enable-dp-attention --trust-remote-code --context-length TOKENIZERS_PARALLELISM SSH_AUTH_SOCK GIT_AUTHOR_NAME PWD
OLDPWD HF_TOKEN_PATH AWS_WEB_IDENTITY_TOKEN_FILE KEYBOARD COMPASS PATH OMP_NUM_THREADS NCCL_DEBUG LD_PRELOAD
""",
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_sounds_secret_shows_no_value(name: str) -> None:
    assert sounds_secret(name)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_name_that_only_looks_like_it_shows_its_value(name: str) -> None:
    """A plan that hides the number of draft tokens can be neither checked nor copied."""
    assert not sounds_secret(name)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", "S3"], ["--api-key", HIDDEN]),
        (["--api-key=S3"], [f"--api-key={HIDDEN}"]),
        (["--api-key=S3 with blank"], [f"--api-key={HIDDEN}"]),
        (["--api-key", "S3", "S4", "--port", "8000"], ["--api-key", HIDDEN, HIDDEN, "--port", "8000"]),
        (["--api-key", "-S3", "-v"], ["--api-key", HIDDEN, "-v"]),
        (["--enable-auth", "--port", "8000"], ["--enable-auth", "--port", "8000"]),
        (["--session", "secret=S3"], ["--session", f"secret={HIDDEN}"]),
        (["--session", "ways=2,secret=S3,rooms=4"], ["--session", f"ways=2,secret={HIDDEN},rooms=4"]),
        (["-e", "HF_TOKEN=S3"], ["-e", f"HF_TOKEN={HIDDEN}"]),
        (["--extra", '{"api_key": "S3", "port": 8}'], ["--extra", f'{{"api_key": "{HIDDEN}", "port": 8}}']),
        (["--header", "Authorization: Bearer S3S3S3S3"], ["--header", f"Authorization: Bearer {HIDDEN}"]),
        (["--header=X-Api-Key: S3"], [f"--header=X-Api-Key: {HIDDEN}"]),
        (["--postgres-db-url", "postgres://u:S3@db/x"], ["--postgres-db-url", f"postgres://{HIDDEN}@db/x"]),
        (["--max-total-tokens", "4096", "--tokenizer", "x"], ["--max-total-tokens", "4096", "--tokenizer", "x"]),
        (["--max-total-tokens=4096"], ["--max-total-tokens=4096"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(argv: list[str], shown: list[str]) -> None:
    assert hide_argv(argv) == shown
    assert hide_argv(shown) == shown


def test_variables_are_shown_without_their_secrets() -> None:
    env = {"HF_TOKEN": "S3", "HTTPS_PROXY": "http://u:S3@proxy:3128", "ARGS": "--api-key=S3 --port=8000", "TOKEN": ""}
    shown = hide_env({**env, "OMP_NUM_THREADS": "4"})
    assert shown == {
        "HF_TOKEN": HIDDEN,
        "HTTPS_PROXY": f"http://{HIDDEN}@proxy:3128",
        "ARGS": f"--api-key={HIDDEN} --port=8000",
        "TOKEN": "",
        "OMP_NUM_THREADS": "4",
    }


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(model_path='m', api_key='S3', port=1)",
        "connecting to redis://:S3@cache:6379/0",
        "cloning https://S3@github.com/x.git",
        "amqp://user:S3/S3@broker/vhost",
        "GET /v1?api_key=S3&page=2",
        "curl -H 'Authorization: Bearer S3S3S3S3S3'",
        '{"client_secret":"S3\\"S3"}',
        "password: S3",
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str) -> None:
    """Engines print their arguments into the log that an error quotes."""
    assert "S3" not in hide(text)
    assert HIDDEN in hide(text)


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch. #running-req: 2, #token: 123, token usage: 0.03, gen throughput (token/s): 88.1",
        "http://127.0.0.1:30000/v1/completions",
        "http://127.0.0.1:8000/mail/x@y",
        "max_total_tokens=4096, tokenizer_path='m', max_new_tokens: 16",
        "key: prefill.args.0",
        "prefill.env.HF_TOKEN: found …, expected text",
        "router.api_key: unknown key",
        "ssh git@host:path",
        "prefill-0 → decode-0: KV, mamba: TP 4 → 1",
    ],
)
def test_an_ordinary_line_stays_as_it_is(text: str) -> None:
    assert hide(text) == text


@pytest.mark.parametrize("char", [*map(chr, range(9)), *map(chr, range(11, 32)), "\x7f", *map(chr, range(0x80, 0xA0))])
def test_no_control_character_reaches_a_terminal(char: str) -> None:
    assert clean(f"a{char}b") == f"a{repr(char)[1:-1]}b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;PWNED\x07\x1b[2J", "\\x1b]0;PWNED\\x07\\x1b[2J"),
        ("con\u202ecod", "con\\u202ecod"),
        ("a\u2066b\u200bc\ufeff", "a\\u2066b\\u200bc\\ufeff"),
        ("adm\u200din", "adm\\u200din"),
        ("x\u3164y", "x\\u3164y"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half \udcff", "half \\udcff"),
        ("next\u2028line", "next\\u2028line"),
        ("one\ntwo\tthree", "one\ntwo\tthree"),
        ("Größe 日本語 ✓ … →", "Größe 日本語 ✓ … →"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_what_acts_is_made_visible_and_what_is_read_stays(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_document_stays_the_same_to_machines() -> None:
    document = {"a\x9b": "\u202e\x7f\U000e0041 ü", "b": [1]}
    text = clean_json(json.dumps(document, ensure_ascii=False, indent=1))
    assert json.loads(text) == document
    assert text.replace("\n", "").isprintable()


def test_a_long_text_is_cut_and_says_so() -> None:
    began = time.process_time()
    shown = clean("x" * 5000 + "\n" + "\x1b" * 50_000_000)
    assert shown.split("\n")[0] == "x" * 1000 + "… (4000 more characters)"
    assert len(shown) < 10_000
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text", ["x", "a.", "x=", "a://", "a://b:", 'a="', "a: ", "Bearer ", "key=", "http://a:b/", "=", '"']
)
def test_no_text_is_dear_to_look_through(text: str) -> None:
    """Names of five thousand letters took half a second each."""
    began = time.process_time()
    hide(text * (100_000 // len(text)))
    hide_argv(["--x", text * (100_000 // len(text))])
    assert time.process_time() - began < 2


def test_one_line_stays_one_line() -> None:
    assert clean_line("a\nb\tc\r\x1b") == "a b c \\x1b"
