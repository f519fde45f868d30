"""Chats: prompts equal those of transformers, and templates reach nothing but their messages."""

import asyncio
import json
import shutil
from typing import Any

import pytest
import transformers

from blockstride.models import LLM, AsyncLLM, EngineConfig, SamplingParams
from blockstride.models.chat_template import ChatTemplate
from blockstride.models.cli import main
from tests.models.conftest import byte_tokenizer

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# a system message goes into the first of the user; answers are marked for training
TURNS = """{{ bos_token }}{% if messages[0].role == 'system' %}
    {%- set system, messages = messages[0].content, messages[1:] -%}
{% endif %}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate, and not ' ~ message.role) }}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        [INST] {{ system ~ ': ' if loop.first and system is defined }}{{ message.content }} [/INST]
    {%- else -%}
        {% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}
    {%- endif -%}
{%- endfor -%}"""

TOOLS = """{%- macro show(tool) -%}
{{ tool.name }}: {{ tool.parameters | tojson(indent=2) }}
{%- endmacro -%}
Year {{ strftime_now('%Y') }}.
{% set ns = namespace(last=none, count=0) %}
{% for message in messages %}
  {% if message.role == 'tool' %}{% continue %}{% endif %}
  {% set ns.last = message %}{% set ns.count = ns.count + 1 %}
  {% if ns.count == 3 %}{% break %}{% endif %}
{% endfor %}
{% for tool in tools or [] %}
{{ show(tool) }}
{% endfor %}
{{ messages | tojson }} {{ ns.last.content }} {{ dict(a=1)['a'] }} {{ pad_token is defined }}
{{- thinking is defined and thinking }}{{ documents is none }}"""

HELLO = [{"role": "user", "content": " Hello <you> & é\n"}]
TALK = [
    {"role": "system", "content": "Be brief"},
    *HELLO,
    {"role": "assistant", "content": "Hi", "tool_calls": None},
    {"role": "user", "content": "Why?"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Look"}]}]
SUM = {"name": "sum", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}
TOKENS = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True, "__type": "AddedToken"},
    "tokenizer_class": "PreTrainedTokenizerFast",
}


@pytest.fixture
def folder(reference, tmp_path):
    """Makes a checkpoint with some chat templates of tokenizer_config.json and of files."""

    def make(said: Any = None, **files: str):
        path = shutil.copytree(reference.path, tmp_path / "model")
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
        tokenizer.save(str(path / "tokenizer.json"))
        config = TOKENS if said is None else {**TOKENS, "chat_template": said}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in files.items():
            file = path / f"{name.replace('__', '/')}.jinja"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        return path

    return make


def load(path) -> LLM:
    return LLM(path, config=EngineConfig(cache_bytes=1 << 24))


NAMED = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOLS}]
CASES: dict[str, tuple[Any, dict[str, str], list[tuple[list[Any], dict[str, Any]]]]] = {
    "one text": (
        CHATML,
        {},
        [
            (HELLO, {}),
            (TALK, {}),
            (TALK, {"add_generation_prompt": False}),
            (HELLO, {"tools": [SUM]}),
        ],
    ),
    "turns": (TURNS, {}, [(HELLO, {}), (TALK, {}), (TALK[1:], {})]),
    "tools": (
        TOOLS,
        {},
        [(TALK, {}), (TALK, {"tools": [SUM, SUM]}), (PARTS, {}), (HELLO, {"thinking": True})],
    ),
    "named": (NAMED, {}, [(HELLO, {}), (TALK, {"tools": [SUM]}), (TALK, {"template": "tool_use"})]),
    "a file goes first": (CHATML, {"chat_template": TURNS}, [(TALK, {})]),
    "several files": (
        CHATML,
        {"chat_template": TURNS, "additional_chat_templates__other": TOOLS},
        [(TALK, {}), (TALK, {"template": "other"}), (TALK, {"template": CHATML})],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_prompts_of_chats_are_those_of_transformers(folder, case):
    said, files, asked = CASES[case]
    path = folder(said, **files)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    llm, ours = load(path), ChatTemplate.of(path)
    for messages, options in asked:
        given = {"add_generation_prompt": True, **options}
        named = given.pop("template", None)
        variables = {k: given.pop(k) for k in ["thinking"] if k in given}
        text = theirs.apply_chat_template(
            messages, chat_template=named, tokenize=False, **given, **variables
        )
        assert ours.render(messages, template=named, variables=variables, **given) == text
        ids = llm.chat_prompt(messages, template=named, variables=variables, **given)
        assert list(ids) == theirs(text, add_special_tokens=False)["input_ids"]


def test_conversations_are_answered_as_their_prompts_are(folder, capsys):
    path = folder(TURNS)
    llm, params = load(path), SamplingParams(6, ignore_eos=True)
    both = llm.chat([HELLO, TALK], params)
    wanted = llm.generate([llm.chat_prompt(HELLO), llm.chat_prompt(TALK)], params)
    assert both == wanted
    assert llm.chat(HELLO, params) == wanted[:1]
    assert asyncio.run(AsyncLLM(llm).chat(TALK, params)) == wanted[1:]
    # on a command line
    given = ["generate", "--model", str(path), "--max-tokens", "6", "--ignore-eos", "--chat"]
    spoken = HELLO[0]["content"]
    assert main([*given, "--prompt", spoken]) == 0
    assert capsys.readouterr().out == f"{wanted[0].text}\n"
    (with_system,) = llm.chat([{"role": "system", "content": "Be brief"}, *HELLO], params)
    assert main([*given, "--prompt", spoken, "--prompt", "Why?", "--system", "Be brief"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{with_system.text}\n")
    assert "Why?" not in out


def test_what_cannot_be_chatted_with_is_one_sentence(folder, capsys):
    path = folder()
    message = "messages: expected a chat template in chat_template.jinja or tokenizer_config.json"
    with pytest.raises(ValueError, match=f"^{message} of the checkpoint, got none in "):
        load(path).chat(HELLO)
    given = ["generate", "--model", str(path), "--chat", "--prompt", "a"]
    assert main(given) == 2
    assert message.removeprefix("messages") in capsys.readouterr().err
    assert main([*given[:3], "--chat", "--token-ids", "5"]) == 2
    assert "--chat: expected messages in words, got --token-ids" in capsys.readouterr().err
    assert main([*given[:3], "--system", "x", "--prompt", "a"]) == 2
    assert "--system: expected --chat beside it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (TURNS, [*HELLO, *HELLO], "messages: expected messages that the .* and not user"),
        ("{{ messages[0].content + 5 }}", HELLO, "messages: expected messages that the chat"),
        ("{% for %}", HELLO, "template: expected one of Jinja, got"),
        (CHATML, [], "messages: expected at least one, got none"),
        (CHATML, "hello", "messages: expected messages with a role"),
        (CHATML, ["hello"], "messages: expected messages with a role"),
        (CHATML, [{"content": "x"}], "messages: expected messages with a role"),
        # attempts to get out
        ("{{ ''.__class__.__mro__ }}", HELLO, "messages: .* unsafe"),
        ("{{ raise_exception.__globals__.x }}", HELLO, "messages: .* unsafe"),
        ("{% set ns = namespace(__call__=1) %}", HELLO, "messages: .* attribute __call__"),
        ("{% set ns = namespace() %}{% set ns.__call__ = 1 %}", HELLO, "messages: .* __call__"),
        ("{% set _ = messages.append(1) %}", HELLO, "messages: .* unsafe"),
    ],
)
def test_messages_and_templates_that_cannot_be_are_named(template, messages, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        ChatTemplate({"default": template}, {}).render(messages)


def test_a_template_sees_plain_data_alone():
    class Thing:
        def secret(self):
            return "out"

    messages = [{"role": "user", "content": Thing(), "more": (Thing(), 1.5, True, 2)}]
    template = (
        "{{ messages[0].content }}{{ messages[0].content.secret is defined }}{{ messages[0].more }}"
    )
    text = ChatTemplate({"default": template}, {}).render(messages)
    assert text == "<Thing>False['<Thing>', 1.5, True, 2]"
