"""A small model behind a server, and what it says in this process."""

import shutil

import openai
import pytest

from blockstride.models import LLM, EngineConfig
from tests.models.serving.servers import KEY, Server

CHAT = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.fixture(scope="session")
def model(reference, tmp_path_factory):
    """A small Jamba with a chat template."""
    folder = shutil.copytree(reference.path, tmp_path_factory.mktemp("served") / "model")
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.fixture(scope="session")
def server(model, tmp_path_factory):
    """A server of few limits and little patience, for files whose tests leave it as it was."""
    limits = ("--max-body-bytes", "100000", "--head-seconds", "1", "--body-seconds", "1")
    limits += ("--send-seconds", "1", "--max-num-seqs", "8", "--max-len", "512")
    started = Server(model, tmp_path_factory.mktemp("server"), *limits)
    yield started
    started.end()


@pytest.fixture(scope="module")
def start(model, tmp_path_factory):
    """Starts a server; it ends with the test file."""
    servers = []

    def begin(*options):
        servers.append(Server(model, tmp_path_factory.mktemp("server"), *options))
        return servers[-1]

    yield begin
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def llm(model):
    """The same model in this process."""
    with LLM(model, config=EngineConfig(cache_bytes=1 << 24)) as made:
        yield made


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0, timeout=60)
