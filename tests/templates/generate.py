# ruff: noqa: E501, RUF001, RUF002
"""Templates and expressions at random, from a seed: mostly ones that mean something.

A rule is a text in which ‹kind› stands for something made by the rules of that kind, and ⟦a¦b¦c⟧ for
one of a, b and c.
"""

import random
import re

VARIABLES = {
    "s": "Hello <World>, it's 5%\n", "u": "ünïcödé ß 日本 🔥", "e": "", "i": 7, "neg": -7, "z": 0,
    "f": 2.5, "g": 1e16, "h": -0.001, "t": True, "no": False, "n": None, "xs": [3, 1, 2, 1],
    "ys": ["b", "A", "c", "a"], "zs": [], "ed": {},
    "d": {"b": 1, "a": [1, 2.5, None, True], "C": "x", "items": 5},
    "ms": [
        {"role": "user", "content": "hi", "n": 2},
        {"role": "assistant", "content": "yo\nline", "n": 1, "calls": [{"id": "c", "a": {"x": 1}}]},
        {"role": "user", "content": "", "n": 3, "x": {"y": [1, {"z": "q"}]}},
    ],
}  # fmt: skip

LEAVES = {
    "text": r"""s|u|e|ms[0].content|ms[1]['content']|ys[0]|d.C|''|'a'|'abc'|'Hello World'|' x y '|"it's"
        'say "hi"'|'a\nb\n'|'ünï ß'|'日本🔥'|'12'|'-3.5'|'0x1f'|'a,b,,c'|'<b>&'|'%s-%d'|'aXbXc'
        'TITLE case here'|'1e3'|'\t tab'|'xxxxxxxxxxxxxxxxxxxxxxxxxxxx'|'a\r\nb\rc'|'-1_0'""",
    "number": "0|1|2|3|-1|7|10|2.5|0.1|1e3|i|neg|f|g|h|z|t|100|1_000|0x1f",
    "list": "xs|ys|zs|ms|d.a|[1, 2]|['x', 'y']|[]|range(4)|(1, 'a')|ms[1].calls",
    "dict": "d|ed|ms[0]|ms[1]|{'k': 1}|{}|ms[2].x",
    "truth": "true|false|t|no|n|i|e|zs|missing",
}

RULES = {
    "text": r"""
(‹text› ~ ‹any›)
(‹text› + ‹text›)
(‹text› * ⟦0¦1¦2¦3⟧)
‹text› | ⟦upper¦lower¦title¦capitalize¦trim¦string¦reverse¦e¦urlencode¦striptags¦center(8)⟧
(‹text›).⟦upper¦lower¦title¦capitalize¦strip¦lstrip¦rstrip¦swapcase¦casefold¦expandtabs⟧()
(‹text›).⟦strip¦lstrip¦rstrip¦removeprefix¦removesuffix⟧(‹text›)
(‹text›).⟦center¦ljust¦rjust¦zfill⟧(⟦0¦3¦10¦11⟧)
(‹text›).replace(‹text›, ‹text›⟦¦, 1¦, -1¦, 0⟧)
‹text› | replace(‹text›, ‹text›)
(‹text›)[‹slice›]
(‹text›)[‹number›]
‹text› | truncate(⟦3¦5¦8¦20⟧⟦¦, true¦, false, ".."¦, true, "", 0⟧)
‹text› | indent⟦¦(2)¦(2, true)¦(width=1, blank=true)¦("> ", true, true)⟧
‹list› | join⟦¦(",")¦("-")⟧
⟦","¦""⟧.join(‹list› | map("string"))
‹any› | tojson⟦¦(indent=2)¦(separators=(",", ":"))¦(sort_keys=true)¦(ensure_ascii=true)⟧
‹any› | string
("‹percent›" % (‹any›, ‹number›))
"‹percent›" | format(‹text›, ‹number›)
"‹braces›".format(‹text›, ‹number›)
(‹text› if ‹truth› else ‹text›)
‹any› | default(‹text›⟦¦, true⟧)
‹number› | filesizeformat⟦¦(true)⟧
""",
    "percent": """
⟦%s¦%r¦%5s¦%-8s|¦%.2s¦%a⟧⟦¦ ¦-⟧⟦%d¦%5d¦%05d¦%+d¦%x¦%#o¦%.2f¦%8.3f¦%e¦%g¦%s¦%i%%¦%G¦% d¦%.5d⟧
""",
    "braces": """
⟦{}¦{!r}¦{:>8}¦{:*^9}|¦{:.2}¦{:<5}¦{!s:6}⟧⟦ ¦-⟧⟦{}¦{:d}¦{:5}¦{:+}¦{:x}¦{:,}¦{:.2f}¦{:08.3f}¦{:e}¦{:g}⟧
⟦{}¦{:.1}⟧|⟦{:%}¦{:^7}¦{:.3}¦{:_}¦{:#b}¦{:010,}¦{:=+9}¦{:#x}¦{:<07}⟧
""",
    "slice": """
⟦¦0¦1¦2¦-1¦-2¦5¦-9⟧:⟦¦0¦1¦2¦-1¦-2¦5¦-9⟧⟦¦¦:¦:2¦:-1¦:-2¦:1⟧
""",
    "number": """
(‹number› ⟦+¦-¦*¦/¦//¦%⟧ ‹number›)
(‹number› ** ⟦0¦1¦2¦3¦-1⟧)
(-‹number›)
‹number› | ⟦abs¦int¦float¦round¦round(1)¦round(2, "floor")¦round(-1)¦round(1, "ceil")⟧
‹text› | ⟦int¦float¦int(5)¦int(base=16)¦int(0, 0)¦float(1.5)¦length¦wordcount¦count⟧
‹list› | ⟦length¦sum¦max¦min¦first¦last⟧
(‹text›).⟦find¦count¦rfind¦index¦rindex⟧(‹text›)
(‹list›).⟦count¦index⟧(‹number›)
(‹list›)[‹number›]
‹dict› | length
(‹number› if ‹truth› else ‹number›)
""",
    "list": """
⟦[]¦[‹any›]¦[‹any›, ‹any›]¦(‹any›,)¦(‹any›, ‹any›)⟧
(‹list› + ‹list›)
(‹list›)[‹slice›]
(‹list› * ⟦0¦1¦2⟧)
‹list› | ⟦sort¦sort(true)¦unique | list¦reverse | list¦list¦batch(2) | list¦batch(2, 0) | list⟧
‹list› | ⟦slice(2) | list¦slice(3, "f") | list¦sort(case_sensitive=true)⟧
‹list› | map("⟦string¦upper¦int¦length¦tojson¦list¦trim¦abs⟧") | list
‹list› | map(attribute="⟦role¦content¦n¦x.y.0¦a¦0⟧"⟦¦, default=0⟧) | list
‹list› | ⟦select¦reject⟧⟦¦("odd")¦("string")¦("in", [1, "a"])¦("defined")¦("gt", 1)⟧ | list
ms | ⟦selectattr¦rejectattr⟧("⟦n¦x¦role", "equalto", "user¦n", "in", [1, 2], "¦x", "defined⟧") | list
ms | ⟦groupby("role")¦sort(attribute="n")¦sort(attribute="role,n", reverse=true)⟧
ms | ⟦unique(attribute="role") | list¦groupby("x", default=1)¦sum("n")¦max(attribute="n")⟧
(‹text›).⟦split()¦split("X")¦split(",", 1)¦rsplit(" ", 1)¦splitlines()¦partition("o")⟧
(‹text›).⟦rpartition("X")¦rsplit(none, 1)¦splitlines(true)¦split(none, 1)¦rsplit("a")⟧
(‹dict›).⟦keys¦values¦items⟧()⟦¦ | list⟧
‹dict› | ⟦dictsort¦items | list¦list¦dictsort(true, "value")¦dictsort(reverse=true)⟧
range(⟦5¦1, 4¦6, 0, -2¦3, 3¦-1⟧)
‹text› | list
""",
    "dict": """
{‹key›: ‹any›⟦¦, ‹key›: ‹any›¦, ‹key›: ‹any›, ‹key›: ‹any›⟧}
dict(‹dict›, z=‹any›)
dict(⟦a=1, b=2¦[[1, 2]]¦⟧)
(‹dict›).copy()
""",
    "key": """
⟦"a"¦"b"¦1¦true¦"x y"¦none¦1.0¦(1, 2)⟧
""",
    "truth": """
(‹any› is ⟦¦not ⟧⟦defined¦undefined¦none¦string¦number¦integer¦float¦boolean¦mapping¦iterable⟧)
(‹any› is ⟦¦not ⟧⟦sequence¦callable¦true¦false¦lower¦upper¦escaped¦odd¦even¦divisibleby 3¦eq 1⟧)
(‹any› is ⟦¦not ⟧⟦ne 1¦gt 1¦lt "b"¦in [1, "a"]¦sameas none¦ge(2)¦sequence and t⟧)
(‹number› ⟦==¦!=¦<¦<=¦>¦>=⟧ ‹number›)
(‹text› ⟦==¦!=¦<¦>=⟧ ‹text›)
(‹any› ⟦==¦!=⟧ ‹any›)
(‹number› < ‹number› <= ‹number›)
(‹text› ⟦in¦not in⟧ ‹text›)
(‹any› ⟦in¦not in⟧ ‹list›)
(‹text› in ‹dict›)
(‹truth› ⟦and¦or⟧ ‹any›)
(not ‹truth›)
(‹text›).⟦startswith¦endswith⟧(‹text›)
(‹text›).is⟦alnum¦alpha¦ascii¦decimal¦digit¦identifier¦lower¦numeric¦printable¦space¦title¦upper⟧()
""",
    "odd": """
⟦missing¦n¦ms[0].nope¦d.get("b")¦d.get("q", 3)¦missing.x¦n.x¦namespace(a=1).a¦f.is_integer()⟧
⟦loop¦va¦vb¦vc¦va¦vb¦vc¦x¦q¦d.items¦1 if no¦xs.0¦"" is callable¦dict⟧
""",
    "any": """
‹text›
‹number›
‹list›
‹dict›
‹truth›
‹odd›
""",
    "statement": """
‹print›
‹print›
‹tag:if ‹any›› ‹body›⟦¦‹tag:elif ‹any››‹body›⟧⟦¦‹tag:else›‹body›⟧‹tag:endif›
‹loop›
‹loop›
‹tag:set ‹name› = ‹any››
‹tag:set ‹name›, ‹name› = ‹list››
‹tag:set ‹name›⟦¦ | upper¦ | trim | replace("a", "b")⟧›‹body›‹tag:endset›
‹tag:with ‹name› = ‹any›, q = i›‹body›‹tag:endwith›
‹tag:filter ⟦upper¦trim¦indent(2)¦replace("a", "b") | title⟧›‹body›‹tag:endfilter›
‹tag:macro m(a, b=2, c=i)›‹body›{{ [a, b, c, varargs, kwargs] }}‹tag:endmacro›‹use›
‹tag:macro w(a)›[{{ a }}{{ caller(i, a) }}]‹tag:endmacro›‹call›
‹tag:set ns = namespace(v=0, l=[])›‹tag:for x in ‹list››‹tag:set ns.v = ns.v + 1›‹grow›‹tag:endfor›{{ ns }}
‹tag:generation›‹body›‹tag:endgeneration›
""",
    "use": """
⟦{{ m(1) }}¦{{ m(s, c=3) }}¦{{ m(1, 2, 3, 4, k=5) }}¦{{ m() }}¦{% call m(1) %}x{% endcall %}⟧
""",
    "call": """
‹tag:call(x, y=⟦1¦s⟧) w(‹any›)›‹body›{{ x }}{{ y }}‹tag:endcall›
""",
    "grow": """
‹tag:set ns.l = ns.l + [x]›
‹tag:if x not in ns.l›‹tag:set ns.l = ns.l + [x, loop.index]›‹tag:endif›
""",
    "loop": """
‹tag:for x in ‹list›‹test››‹body›‹round›⟦¦‹tag:else›none⟧‹tag:endfor›
‹tag:for x in ‹text›‹test››‹round›‹body›‹tag:endfor›
‹tag:for x, vc in (‹dict›).items()›‹body›‹round›‹tag:endfor›
‹tag:for x in ms | map(attribute="n")›‹body›‹round›{{ vb }}‹tag:endfor›
‹tag:for x in ‹list› recursive›{{ x }}⟦¦{{ loop(x) if x is iterable and x is not string }}⟧‹tag:endfor›
""",
    "test": """
⟦¦¦¦ if x is defined¦ if x != 1¦ if ‹truth›⟧
""",
    "round": """
{{ loop.⟦index¦index0¦first¦last¦length¦revindex¦revindex0¦depth¦cycle("p", "q")¦changed(i)⟧ }}
{{ [loop.⟦previtem¦nextitem⟧, loop.⟦last¦length⟧] }}
‹tag:if loop.index > ⟦1¦2⟧›‹tag:⟦break¦continue⟧›‹tag:endif›{{ x }}
{{ x }}
""",
    "print": """
{{⟦¦¦-⟧ ‹any› ⟦¦¦-⟧}}
""",
    "name": """
⟦va¦vb¦vc¦i¦s⟧
""",
    "plain": r"""
⟦text¦  text⏎¦⏎¦ a⏎  ¦x{# c #}y⏎¦  {#- c -#}  ⏎¦{% raw %}{{ r }}{% endraw %}⏎¦  ⟧
""",
}
TABLE = {kind: rules.strip().split("\n") for kind, rules in RULES.items()}
LEAF_TABLE = {kind: re.split(r"\||\n\s*", leaves) for kind, leaves in LEAVES.items()}


class Maker:
    """Makes texts of a kind; `depth` bounds how far rules go into each other."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def make(self, kind: str, depth: int) -> str:
        if kind == "body":
            count = self.random.randrange(3)
            return "".join(self.make("statement", depth) for _ in range(count))
        if kind.startswith("tag:"):
            return self.tag(self.filled(kind.removeprefix("tag:"), depth))
        if kind in LEAF_TABLE:
            if self.random.random() < 0.06:
                kind = self.random.choice(["text", "number", "list", "dict", "truth"])
            if depth <= 0:
                return self.random.choice(LEAF_TABLE[kind])
        if kind == "any" and depth <= 0:
            return self.make(self.random.choice(list(LEAF_TABLE)), 0)
        if kind == "statement" and (depth <= 0 or self.random.random() < 0.3):
            kind = "plain"
        return self.filled(self.random.choice(TABLE[kind]), depth - 1)

    def filled(self, rule: str, depth: int) -> str:
        while match := re.search(r"⟦([^⟦⟧]*)⟧", rule):
            choice = self.random.choice(match[1].split("¦"))
            rule = rule[: match.start()] + choice + rule[match.end() :]
        rule = rule.replace("⏎", "\n")
        while match := re.search(r"‹([^‹›]*)›", rule):
            rule = rule[: match.start()] + self.make(match[1], depth) + rule[match.end() :]
        return rule

    def tag(self, inner: str) -> str:
        opening, closing = (self.random.choice(["", "", "", "-", "+"]) for _ in range(2))
        return f"{{%{opening} {inner} {closing}%}}" + self.random.choice(["", "\n", "  \n", " "])


def expressions(seed: int, count: int) -> list[str]:
    """Templates that print one expression each."""
    maker = Maker(seed)
    kinds = ["text", "text", "number", "list", "dict", "truth", "any"]
    return ["{{ " + maker.make(maker.random.choice(kinds), 3) + " }}" for _ in range(count)]


def templates(seed: int, count: int) -> list[str]:
    """Templates of statements."""
    made = []
    for at in range(count):
        maker = Maker(seed + at)
        made.append("".join(maker.make("statement", 3) for _ in range(3)))
    return made
