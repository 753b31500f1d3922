"""What is hidden, and what is not."""

from __future__ import annotations

import pytest

from spark_pipeline.spec.secrets import names_a_secret, without_secret, words_without_secrets


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "OPENAI_API_KEY", "GH_PAT", "DB_PASS", "MYSQL_PWD", "AWS_SECRET", "hf_token", "--api-key", "PASSWORD"],
)
def test_these_names_hold_secrets(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "PYTHONPATH", "TORCH_CUDA_ARCH_LIST", "TOKENIZERS_PARALLELISM", "KEYS"]
)
def test_these_do_not(name: str) -> None:
    assert not names_a_secret(name)


def test_a_login_inside_a_url_is_hidden_and_the_rest_stays() -> None:
    shown = without_secret("PIP_INDEX_URL", "https://user:pass@index.example/simple")
    assert shown == "https://***@index.example/simple"
    assert without_secret("HTTPS_PROXY", "http://proxy.example:3128") == "http://proxy.example:3128"


def test_the_word_behind_a_flag_that_names_a_secret_is_hidden() -> None:
    words = ("vllm", "serve", "m", "--api-key", "sk-1", "--hf-token=hf_2", "--port", "8000")
    assert words_without_secrets(words) == (
        "vllm",
        "serve",
        "m",
        "--api-key",
        "***",
        "--hf-token=***",
        "--port",
        "8000",
    )
