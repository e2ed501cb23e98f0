"""Merges from the scores of sentencepiece's BPE, which has no merges: it joins the two neighbours whose token scores
best, leftmost first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

LONGEST_TOKEN = 512
"""Every cut of every token is tried, so a longer one (none is known) would only cost time."""


class ScoresUnsupported(ValueError):
    """Scores that no list of merges can say; the message goes on after the name of the scores' field."""


def merges_of_scores(
    vocabulary: Mapping[str, int], scores: Sequence[float], *, joined: Collection[str], unused: Collection[str] = ()
) -> list[tuple[str, str]]:
    """The merges of a vocabulary (text → id; `scores` by id), best first. `joined`: the tokens that are joined and that
    joins make; `unused`: those that sentencepiece joins to and then takes apart. Raises `ScoresUnsupported`."""
    if any(score != score for score in scores):
        raise ScoresUnsupported("holds a score that is no number")
    by_score: defaultdict[float, list[str]] = defaultdict(list)
    halves: dict[str, list[tuple[str, str]]] = {}
    for text, number in vocabulary.items():
        if text not in joined and text not in unused:
            continue
        if len(text) > LONGEST_TOKEN:
            raise ScoresUnsupported(f"is for a token longer than {LONGEST_TOKEN} characters")
        known = []
        for at in range(1, len(text)):
            left = text[:at]
            if left in joined and (right := text[at:]) in joined:
                known.append((left, right))
        if not known:
            continue
        if text in unused:
            raise ScoresUnsupported(f"is for {text!r}, which is marked unused though tokens join to it")
        known.sort(key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
        halves[text] = known
        by_score[float(scores[number])].append(text)
    merges: list[tuple[str, str]] = []
    for score in sorted(by_score, reverse=True):
        texts = by_score[score]
        if len(texts) > 1:
            # Equal scores join the leftmost pair, whatever its token: no order of merges says that, except for runs of
            # one letter (the runs of spaces of Llama 2 and Mistral), where it means the longest run first.
            if any(len(set(text)) > 1 for text in texts):
                raise ScoresUnsupported(f"is {score} for both {texts[0]!r} and {texts[1]!r}")
            texts = sorted(texts, key=len, reverse=True)
        merges += (cut for text in texts for cut in halves[text])
    return merges
