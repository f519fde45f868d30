"""Chat templates: from messages to the text that a model was trained to answer.

A template is a program that comes with a checkpoint. It runs in Jinja's sandbox, sees plain data
alone, and reaches nothing else of this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from blockstride.checks import expect
from blockstride.models.checkpoint_files import expect_content, read_json
from blockstride.models.engine.values import expect_type

FILE, FOLDER, CONFIG = "chat_template.jinja", "additional_chat_templates", "tokenizer_config.json"
DEFAULT, WITH_TOOLS = "default", "tool_use"
TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

Messages = Sequence[Mapping[str, Any]]
"""A conversation: the role and content of each message, and what else a template knows."""


class TemplateOptions(TypedDict, total=False):
    """What may be said beside messages; see `ChatTemplate.render`."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    template: str | None
    variables: Mapping[str, Any] | None


class ChatTemplate:
    """The chat templates of a checkpoint.

    Args:
        templates: Name -> template; the one that is usually meant is called `default`.
        tokens: What templates know of the tokenizer: `bos_token`, `eos_token` and the like.
    """

    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._templates, self._tokens = dict(templates), dict(tokens)

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate:
        """What a checkpoint has, in files of their own or else in tokenizer_config.json.

        Raises:
            ValueError: There is none, or a file is not what it should be.
        """
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        templates = _in_files(folder) or _in_config(config.get("chat_template"))
        where = f"a chat template in {FILE} or {CONFIG} of the checkpoint"
        expect(bool(templates), "messages", where, f"none in {folder}")
        older = folder / "special_tokens_map.json"
        named = {**(read_json(older) if older.is_file() else {}), **config}
        tokens = {name: _content(named.get(name)) for name in TOKENS}
        return cls(templates, {name: text for name, text in tokens.items() if text is not None})

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: The conversation.
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: Whether it ends with what begins an answer.
            template: The name of a template, or one itself; None for the usual one.
            variables: What else the template knows, such as `enable_thinking`.

        Raises:
            TypeError: Messages, tools or a template of another type.
            ValueError: No message, a template that isn't there or isn't one, or messages that it
                refuses.
        """
        given = {
            **self._tokens,
            **(variables or {}),
            "messages": _checked(messages),
            "tools": None if tools is None else _mappings(tools, "tools", "JSON schemas"),
            "add_generation_prompt": add_generation_prompt,
        }
        given.setdefault("documents", None)
        source = self._chosen(template, has_tools=tools is not None)
        try:
            program = _environment().from_string(source)
        except TemplateError as error:
            raise ValueError(f"template: expected one of Jinja, got {error}") from error
        try:
            return program.render(_plain(given))
        except Exception as error:  # a template may stumble over anything
            told = "messages that the chat template takes"
            raise ValueError(f"messages: expected {told}, got {error}") from error

    def _chosen(self, template: str | None, *, has_tools: bool) -> str:
        if template is not None:
            expect_type(template, "template", str, "the name of a template, or one itself")
            return self._templates.get(template, template)
        if has_tools and WITH_TOOLS in self._templates:
            return self._templates[WITH_TOOLS]
        names = ", ".join(sorted(self._templates))
        expect(DEFAULT in self._templates, "template", f"one of {names}", "none")
        return self._templates[DEFAULT]


def conversations(messages: Any) -> list[Messages]:
    """One conversation or several as a list."""
    is_list = isinstance(messages, list | tuple) and bool(messages)
    return list(messages) if is_list and isinstance(messages[0], list | tuple) else [messages]


def _in_files(folder: Path) -> dict[str, str]:
    """The templates that are files."""
    files = {file.stem: file for file in sorted((folder / FOLDER).glob("*.jinja"))}
    if (folder / FILE).is_file():
        files[DEFAULT] = folder / FILE
    for file in files.values():
        expect_content(file)
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


def _in_config(said: Any) -> dict[str, str]:
    """The templates of tokenizer_config.json: none, a text, or a list of texts with names."""
    if said is None or isinstance(said, str):
        return {} if said is None else {DEFAULT: said}
    named: list[Any] = said if isinstance(said, list) else [None]
    fits = all(isinstance(each, Mapping) and {"name", "template"} <= each.keys() for each in named)
    expect(fits, "chat_template", f"a text, or named ones, in {CONFIG}", repr(said)[:80])
    return {each["name"]: each["template"] for each in named}


def _content(token: Any) -> str | None:
    """The text of a token, which files write as it is or with how it is to be matched."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _checked(messages: Any) -> list[dict[str, Any]]:
    """Messages without what is None, as other programs write what isn't there."""
    expected = "messages with a role, one after the other"
    given = _mappings(messages, "messages", expected)
    expect(bool(given), "messages", "at least one", "none")
    for message in given:
        expect(isinstance(message.get("role"), str), "messages", expected, repr(message)[:80])
    return [{key: v for key, v in message.items() if v is not None} for message in given]


def _mappings(values: Any, name: str, expected: str) -> list[Mapping[str, Any]]:
    expect_type(values, name, (list, tuple), expected)
    for value in values:
        expect_type(value, name, Mapping, expected)
    return list(values)


def _plain(value: Any) -> Any:
    """The same as what JSON has, so that a template gets hold of no object with methods."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value if value is None or isinstance(value, bool) else f"<{type(value).__name__}>"


class _Generation(Extension):
    """`{% generation %}` marks answers for training, and changes no text."""

    tags = {"generation"}  # noqa: RUF012 (as its parent has it)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace without the names that Python itself looks up."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, *given = args
        for name in dict(*given, **attributes):
            _expect_public(name)
        Namespace.__init__(self, *given, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _expect_public(name)
        super().__setitem__(name, value)


def _expect_public(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace with the attribute {name}")


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    # Jinja's own escapes for HTML, which no model was trained on
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace
    )
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **style: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **style)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
