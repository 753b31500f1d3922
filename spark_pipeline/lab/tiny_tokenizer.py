"""A byte-level BPE tokenizer of 512 tokens, made here from a paragraph of text: no tokenizer library, no download.

Laid out as Qwen's: 256 bytes, merges, then the special tokens. Token 0 is "!", so an engine that computes NaN
answers "!!!!", as the real Qwen models do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

VOCAB_SIZE = 512
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
END_OF_TURN, PADDING = "<|im_end|>", "<|endoftext|>"
_MERGES = VOCAB_SIZE - 256 - len(SPECIAL_TOKENS)

# What the merges are learnt from: enough different words for all of them, and nobody's text.
_TEXT = """
Two small machines stand on a desk and share one language model, because the model is too large for either of them.
Each node holds half of every layer; after each step they add their partial results over a fast network cable.
A pipeline first asks cheap questions: does the engine know this architecture, is there enough free memory, are the
weights the ones that the hub describes, does every machine carry the same image? Only then it downloads, copies,
starts and waits until the endpoint answers a real request. When something goes wrong it says what happened, where it
was seen and what should be done next; the last good deployment is brought back and proves that it answers again.
Numbers are measured with the same command, kept with the revision, the digest and the arguments that produced them,
so that somebody who reads the history later can compare like with like and believe the difference.
"""

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def token_id(token: str) -> int:
    """Id of a special token."""
    return VOCAB_SIZE - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)


def vocabulary() -> list[str]:
    """All tokens in the order of their ids, in the printable spelling of byte-level BPE (a space is "Ġ")."""
    return [*_byte_alphabet(), *(left + right for left, right in _learn_merges()), *SPECIAL_TOKENS]


def is_plain_text(token: str) -> bool:
    """Whether a token alone is something to read: ASCII letters, digits, punctuation, space."""
    return token not in SPECIAL_TOKENS and all(" " < character <= "~" or character == "Ġ" for character in token)


def tokenizer_files() -> dict[str, bytes]:
    """tokenizer.json for the tokenizers library and tokenizer_config.json for transformers."""
    tokens = vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(token) for token in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens) if token not in SPECIAL_TOKENS},
            "merges": [list(pair) for pair in _learn_merges()],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "eos_token": END_OF_TURN,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    return {"tokenizer.json": _json(tokenizer), "tokenizer_config.json": _json(config)}


def _added(token: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id(token), "content": token, **flags}


def _byte_alphabet() -> list[str]:
    """GPT-2's spelling of the 256 bytes: printable ones as themselves first, the others as U+0100 and following."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]


@lru_cache(maxsize=1)
def _learn_merges() -> list[tuple[str, str]]:
    """Byte-pair encoding in its textbook form; ties go to the pair that sorts first, so it is the same everywhere."""
    known = set(_byte_alphabet())
    words = Counter(tuple(word.replace(" ", "Ġ")) for word in re.findall(r" ?[A-Za-z]+", " ".join(_TEXT.split())))
    merges: list[tuple[str, str]] = []
    while len(merges) < _MERGES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        # Two ways to spell one token would leave a hole in the vocabulary.
        best = min((pair for pair in pairs if "".join(pair) not in known), key=lambda pair: (-pairs[pair], pair))
        known.add("".join(best))
        merges.append(best)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
