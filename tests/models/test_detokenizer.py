"""Text that comes piece by piece is what decoding all tokens at once gives, whatever they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockstride.models.detokenizer import WINDOW, Detokenizer, TokenDecoder
from blockstride.models.text_stream import TextStream
from tests.models.tokenizer_kinds import all_kinds, text_beyond

KINDS = all_kinds()
FEW = settings(max_examples=settings().max_examples * 2 // 5)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def tokens(kind, max_size):
    """Any tokens of a kind, one that stands for nothing among them, with runs of the same few."""
    tokenizer = KINDS[kind]
    texts = ["the cat. ", "é日本🎉\n x", "日"]
    ids = [token for text in texts for token in tokenizer.encode(text).ids]
    some = st.sampled_from(ids) | st.integers(0, tokenizer.get_vocab_size())
    part = st.tuples(st.lists(some, min_size=1, max_size=4), st.integers(1, 4))
    return st.lists(part, max_size=6).map(
        lambda parts: [token for run, times in parts for token in run * times][:max_size]
    )


def ids(kind, *names) -> list[int]:
    found = [KINDS[kind].token_to_id(name) for name in names]
    return [token for token in found if token is not None]


def detokenizer(kind, prompt):
    return Detokenizer(TokenDecoder(KINDS[kind]), prompt)


def check(kind, prompt, output):
    expected = text_beyond(KINDS[kind], prompt, output)
    stream, text = detokenizer(kind, prompt), ""
    for count, token in enumerate(output):
        # nothing else follows from here
        assert text + stream.rest() == text_beyond(KINDS[kind], prompt, output[:count])
        text += stream.push(token)
        assert expected.startswith(text)
    assert text + stream.rest() == expected


@EVERY_KIND
@FEW
@given(data=st.data())
def test_pieces_join_to_what_decoding_everything_gives(kind, data):
    check(kind, data.draw(tokens(kind, 10)), data.draw(tokens(kind, 30)))


@EVERY_KIND
@pytest.mark.parametrize("shift", range(4))
def test_tokens_are_dropped_in_the_middle_of_a_character_without_harm(kind, shift):
    encode = KINDS[kind].encode
    check(kind, encode("a" * shift).ids, encode("🎉" * WINDOW).ids)


@EVERY_KIND
@FEW
@given(data=st.data())
def test_a_stop_text_ends_a_stream_as_soon_as_the_text_has_it(kind, data):
    prompt, output = data.draw(tokens(kind, 10)), data.draw(tokens(kind, 30))
    stops = data.draw(st.lists(st.sampled_from(["\n", "the", "x\n", "é", "本🎉", ". x", "th"])))
    least, include = data.draw(st.integers(0, 8)), data.draw(st.booleans())
    stream, got, used = TextStream(detokenizer(kind, prompt), stops, least, include), "", 0
    while used < len(output) and not stream.stopped:
        got += stream.push(output[used])
        used += 1
    got += stream.finish()
    texts = (text_beyond(KINDS[kind], prompt, output[:n]) for n in range(1, len(output) + 1))
    early = 0
    for count, text in enumerate(texts, 1):
        if count < least:
            early = len(text)
            continue
        # where each stop text first ends after what comes too early
        begins = {stop: text.find(stop, max(0, early - len(stop) + 1)) for stop in stops}
        found = [(at, at + include * len(stop)) for stop, at in begins.items() if at >= 0]
        if found:
            assert (used, got, stream.stopped) == (count, text[: min(found)[1]], True)
            break
    else:
        assert (got, stream.stopped) == (text_beyond(KINDS[kind], prompt, output), False)
    assert stream.text == got


@EVERY_KIND
def test_tokens_are_decoded_a_few_at_a_time(kind, monkeypatch):
    sizes = []
    decode = TokenDecoder.decode

    def count(self, token_ids):
        sizes.append(len(token_ids))
        return decode(self, token_ids)

    monkeypatch.setattr(TokenDecoder, "decode", count)
    (token,) = ids(kind, "naïve word")
    stream = detokenizer(kind, [token] * 500)
    for _ in range(500):
        stream.push(token)
    assert max(sizes) <= WINDOW + 1
    assert len(sizes) < 600


def test_a_run_of_bytes_is_decoded_when_it_is_over(monkeypatch):
    stream = TextStream(detokenizer("byte-fallback", [5]), ["\n", "日"])
    sizes = []
    decode = TokenDecoder.decode
    monkeypatch.setattr(
        TokenDecoder, "decode", lambda self, ids: (sizes.append(len(ids)), decode(self, ids))[1]
    )
    run = ids("byte-fallback", *(f"<0x{byte:02X}>" for byte in "本é🎉".encode() * 100))
    assert not any(map(stream.push, run))
    assert not sizes
    assert stream.push(*ids("byte-fallback", "x")) == "本é🎉" * 100 + "x"


def test_a_wrong_byte_makes_a_whole_run_of_them_wrong():
    kind = "byte-fallback, first space stripped"
    prompt, *output = ids(kind, "▁a", "<0xC3>", "<0xA9>", "<0xC3>", "<0x28>", "x")
    stream = detokenizer(kind, [prompt])
    assert [stream.push(token) for token in output] == ["", "", "", "", "\ufffd" * 4 + "x"]


def test_what_ends_in_the_middle_of_a_character_keeps_its_bytes():
    stream = detokenizer("byte-level", KINDS["byte-level"].encode("a").ids)
    first, second, *_ = KINDS["byte-level"].encode("🎉").ids
    assert stream.push(first) + stream.push(second) == ""
    assert stream.rest() == "\ufffd"


def test_a_prompt_that_ends_in_the_middle_of_a_character_is_completed():
    first, *others = KINDS["byte-level"].encode("🎉").ids
    stream = detokenizer("byte-level", [first])
    assert "".join(map(stream.push, others)) == "🎉"


def test_a_stop_text_of_byte_tokens_counts_before_their_run_is_over():
    prompt, *output = ids("byte-fallback", "the", "a", "<0x0A>")
    for stop in ("\n", "a\n"):
        stream = TextStream(detokenizer("byte-fallback", [prompt]), [stop])
        for token in output:
            stream.push(token)
        assert (stream.stopped, stream.text) == (True, "a\n"[: -len(stop)])


@pytest.mark.parametrize(
    ("least", "text"), [(0, ""), (1, ""), (2, "a"), (3, "a"), (4, "axy"), (5, "axy"), (6, "axyabz")]
)
def test_a_stop_text_that_ends_before_the_least_number_of_tokens_does_not_count(least, text):
    # what is held back as the beginning of one stop text is the whole of another
    tokens = [KINDS["byte-level"].encode(letter).ids[0] for letter in "axyabz"]
    stream = TextStream(detokenizer("byte-level", []), ["a", "ab", "xy"], least)
    got = "".join(map(stream.push, tokens)) + stream.finish()
    assert (got, stream.stopped) == (text, least < 6)
