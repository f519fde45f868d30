"""The container recipe and the compose file say what the command line and the server know."""

import argparse
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from fastapi.routing import APIRoute

from blockstride.models.commands import serve
from blockstride.models.commands.engine_options import ENGINE_KEYS
from blockstride.models.serving.routes import router
from tests.models.conftest import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "container"
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8").replace("\\\n", "")
SERVICES = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.+)$", DOCKERFILE, re.MULTILINE)


def arguments() -> argparse.Namespace:
    """What the server of the compose file is started with, as its command line reads it."""
    (entry,) = instructions("ENTRYPOINT")
    program, command, *options = json.loads(entry)
    assert (program, command) == ("blockstride", "serve")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args([*options, *SERVICES["server"]["command"]])


def test_all_that_a_wheel_is_built_from_is_copied_into_the_image():
    copied = [name for line in instructions("COPY") for name in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    packages = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert packages | {"src", "pyproject.toml", "README.md", "LICENSE"} <= set(copied)


def test_a_container_is_started_as_the_command_line_knows_and_asked_what_the_server_answers():
    args = arguments()
    assert args.model == f"/models/{SHIPPED.name}"
    assert SERVICES["server"]["ports"] == [f"{args.port}:{args.port}"]
    for engine in (*args.prefill, *args.decode):
        assert engine.partition("=")[0] in ENGINE_KEYS
    (url,) = re.findall(r"http://[^']+", " ".join(instructions("HEALTHCHECK")))
    asked = urlsplit(url)
    assert asked.port == args.port
    assert asked.path in {route.path for route in router.routes if isinstance(route, APIRoute)}
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{args.port}"]}]


def test_a_container_is_given_the_time_that_its_answers_may_take():
    args = arguments()
    grace = SERVICES["server"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > args.drain_seconds + 10
    assert serve.KEY_VARIABLE in SERVICES["server"]["environment"]
