"""Small tokenizers of every kind of decoder that models have."""

import itertools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<pad>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁▁", "▁the", "▁a", "the", "a", ".", "x", "▁x", "日", "▁日本"]


def byte_level() -> Tokenizer:
    """GPT-2, Llama 3, Qwen, Granite: a token is some bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©"), ("æ", "Ĺ"), ("æĹ", "¥")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback(*after: decoders.Decoder) -> Tokenizer:
    """Llama 2, Mistral, Gemma, Jamba: pieces of text, and bytes for what isn't among them."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *BYTES, *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def metaspace(prepend_scheme: str) -> Tokenizer:
    """T5, XLNet: pieces whose first space is none."""
    pieces = [(piece, -float(i)) for i, piece in enumerate([*SPECIAL, *PIECES])]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    return tokenizer


def unigram_bytes() -> Tokenizer:
    """Unigram with bytes for what isn't a piece."""
    pieces = [(piece, -float(i)) for i, piece in enumerate([*SPECIAL, *BYTES, *PIECES])]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def word_piece(cleanup: bool) -> Tokenizer:
    """BERT: words, and ends of words."""
    pieces = ["the", "##ing", "##s", "cat", ".", ",", "'", "n't", "'s", "do", "日"]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<pad>"))
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    return tokenizer


def word_ends(decoder: decoders.Decoder | None) -> Tokenizer:
    """GPT-1, CLIP: pieces that say where a word ends; or nothing that says how to join them."""
    pieces = ["the</w>", "cat</w>", "c", "at", "日</w>", ".</w>"]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


def all_kinds() -> dict[str, Tokenizer]:
    """Each with three special tokens, a word that was added, and ids that stand for nothing."""
    kinds = {
        "byte-level": byte_level(),
        "byte-fallback": byte_fallback(),
        "byte-fallback, first space stripped": byte_fallback(decoders.Strip(" ", 1, 0)),
        "metaspace": metaspace("always"),
        "metaspace, first": metaspace("first"),
        "metaspace, never": metaspace("never"),
        "unigram with bytes": unigram_bytes(),
        "word pieces": word_piece(cleanup=False),
        "word pieces, cleaned up": word_piece(cleanup=True),
        "word ends": word_ends(decoders.BPEDecoder(suffix="</w>")),
        "no decoder": word_ends(None),
    }
    for tokenizer in kinds.values():
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
        tokenizer.add_tokens([AddedToken("naïve word", special=False)])
    return kinds


def text_beyond(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    """What `Detokenizer` promises, from one decoding of everything."""
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    text = tokenizer.decode(prompt + output, skip_special_tokens=True)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))
    return text[len(list(same)) :]
