"""GBNF into Lark: every construct, and what is refused with its line."""

from __future__ import annotations

import pytest

from derender.engines.gbnf import GrammarError, lark_of_gbnf


@pytest.mark.parametrize(
    ("gbnf", "lark"),
    [
        ('root ::= "a"', 'start: T0\nT0: "a"'),
        ('root ::= "a" "b" | "c"', 'start: T0\nT0: "a" "b" | "c"'),
        ('root ::= ("a" | "b")* "c"+ "d"?', 'start: T0\nT0: ( "a" | "b" )* ("c")+ ("d")?'),
        ('root ::= "a"{2} "b"{2,} "c"{ 2 , 3 }', 'start: T0\nT0: ("a"){2} ("b"){2,} ("c"){2,3}'),
        ("root ::= [a-z0_]", r"start: T0" + "\n" + r"T0: /[\x{61}-\x{7A}\x{30}\x{5F}]/"),
        (r"root ::= [^\"\\\]\n/]", r"start: T0" + "\n" + r"T0: /[^\x{22}\x{5C}\x{5D}\x{A}\x{2F}]/"),
        ("root ::= [a-]", r"start: T0" + "\n" + r"T0: /[\x{61}\x{2D}]/"),
        ("root ::= .", "start: T0\nT0: /(?s:.)/"),
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\"', 'start: T0\nT0: "Aé😀\\n\\"\\\\"'),
        ('root ::= "a" |', 'start: T0\nT0: "a" | ""'),
        ('root ::= ( | "a")', 'start: T0\nT0: ( "" | "a" )'),
        ('root ::= ""', 'start: T0\nT0: ""'),
        ('# one\nroot ::= a-b # two\na-b ::= "x" |\n  "y"\n', 'start: T0\nT0: T1\nT1: "x" | "y"'),
        ('root ::= "a" root | "b"', 'start: r0\nr0: "a" r0 | "b"'),
        ('root ::= x y\nx ::= "(" x ")" | y\ny ::= "1"', 'start: r0\nr0: r1 T2\nr1: "(" r1 ")" | T2\nT2: "1"'),
        ('x ::= "1"\nroot ::= x', 'start: T1\nT0: "1"\nT1: T0'),
    ],
)
def test_grammars(gbnf, lark):
    assert lark_of_gbnf(gbnf) == lark


@pytest.mark.parametrize(
    ("gbnf", "words"),
    [
        ("", "no rule is named root"),
        ('other ::= "a"', "no rule is named root"),
        ("root ::= x", "rule root uses x, which is no rule"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule root is there twice"),
        ('"a" root ::= "b"', "line 1: a grammar begins with a rule"),
        ('root ::= ("a"', r"line 1: \( without \) in rule root"),
        ('root ::= "a")', r"line 1: \) without \("),
        ('root ::= "a\nb"', "line 1: .* is not understood"),
        ("root ::=\n  <|end|>", "line 2: .* is not understood"),
        ("root ::= * ", r"line 1: \* with nothing before it"),
        ('root ::= "a" | {3}', "with nothing before it"),
        ("root ::= []", "an empty set"),
        ("root ::= [z-a]", "line 1: the range z-a is backwards"),
        (r'root ::= "\uD800"', r"\\uD800 is no character"),
    ],
)
def test_refusals(gbnf, words):
    with pytest.raises(GrammarError, match=words):
        lark_of_gbnf(gbnf)


def test_a_hostile_text_takes_no_time():
    with pytest.raises(GrammarError):
        lark_of_gbnf("root ::= " + "(" * 30000)
    assert len(lark_of_gbnf("root ::= " + '"a"? ' * 5000)) > 5000
    chain = "".join(f"a{i} ::= a{i + 1} a{(i * 7) % 3000}\n" for i in range(3000))
    assert "start: r3001" in lark_of_gbnf(chain + 'a3000 ::= "x"\nroot ::= a0')
