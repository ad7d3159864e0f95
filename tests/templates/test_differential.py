# ruff: noqa: E501
"""Our engine renders what jinja2 3.1.6 renders, set up as transformers sets it up."""

import pytest

from templates.generate import VARIABLES, expressions, templates
from templates.oracle import by_jinja2, by_us, differences

NAMED = {
    "xs": [3, 1, 2],
    "s": " Hello <World>\n",
    "d": {"b": 1, "a": [1, 2.5, None]},
    "tools": None,
    "messages": [{"role": "user", "content": "hi"}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": []}]}],
}


@pytest.mark.parametrize("seed", [1, 500, 77777])
def test_generated_expressions_render_as_jinja2_does(seed):
    cases = [(source, VARIABLES) for source in expressions(seed, 400)]
    assert differences(cases) == []


@pytest.mark.parametrize("seed", [1, 500, 77777])
def test_generated_templates_render_as_jinja2_does(seed):
    cases = [(source, VARIABLES) for source in templates(seed, 300)]
    assert differences(cases) == []
    # Most of them say something, or this would be no test.
    assert sum(by_jinja2(*case).kind == "text" for case in cases) > 200


@pytest.mark.parametrize(
    "source",
    [
        "{% if tools is iterable and tools | length > 0 %}T{% endif %}{{ messages[0].content }}",
        "{% if nope is iterable and nope | length > 0 %}T{% endif %}{{ nope is iterable }}",
        "{% for x in s %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
        "{% for k in d %}{{ k }}{{ loop.revindex }}{% endfor %}",
        "{% for x in xs | map('string') %}{{ x }}{{ loop.last }}{% endfor %}",
        "{{ 'a\n\nb\n' | indent(2) }}|{{ s is sequence }}{{ d is sequence }}{{ d.items() is sequence }}",
        "{{ s.rsplit('l', 1) }}{{ s.partition('o') }}{{ s.removeprefix(' He') }}{{ s.index('H') }}",
        "{{ s.removesuffix('\n') }}{{ d.copy() }}{{ xs is callable }}{{ d.get is callable }}",
        "{{ s | wordcount }}{{ s | truncate(8) }}{% set j = joiner(';') %}{{ j() }}{{ j() }}",
        "{{ '%s %5.2f %r' % ('a', 2.5, none) }}{{ 'x' | int }}{{ '1f' | int(base=16) }}",
        "{{ '{:<07}|{:>07}|{:^07}|{:<07}|{:^+08,}'.format(7, 7, -7, 2.5, 1234) }}",
        "{{ 0.1 + 0.2 }}{{ 1e16 }}{{ 1 / 3 }}{{ 1e-7 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7.5 // -2 }}",
        "{{ 2 ** 100 }}{{ xs[::-1] }}{{ s[1:4:2] }}{{ 1 < 2 < 3 }}{{ 'ab' * 3 }}",
        "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}",
        "{% macro f() %}{{ s }}{% endmacro %}{{ f() }}{% set s = 1 %}{{ f() }}",
        "{% for x in xs %}{% set s = x %}{{ s }}{% endfor %}{{ s }}",
        "{% if false %}{% set tools = 1 %}{% endif %}{{ tools }}",
        "{% for x in xs if x not in ns.l %}{% endfor %}{% set ns = namespace(l=[]) %}",
        "{% for n in tree recursive %}{{ loop.depth }}{{ n.v }}{{ loop(n.c) }}{% endfor %}",
        "{% call(x) m() %}{{ x }}{% endcall %}{% macro m() %}{{ caller(1) }}{% endmacro %}",
        "{% set g = xs | map('string') %}{% for a in g %}{% break %}{% endfor %}{{ g | list }}",
        "  {% if true %}\n  a\n  {%- endif +%}\n {# c #}\nb {%- raw -%} {{ x }} {%- endraw %}\n",
        "{{ nope.x }}",
        "{{ nope.x.y | default(1) }}",
        "{{ [1] + 'a' }}",
        "{{ xs.append(1) }}",
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception('no') }}",
        "{% break %}",
        "{% include 'x' %}",
        "{{ x | nope }}",
        "{{ d | tojson(indent=2) }}{{ d | tojson(separators=(',', ':'), sort_keys=true) }}",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_known_corner_cases_render_as_jinja2_does(source, line_end):
    assert differences([(source.replace("\n", line_end), NAMED)]) == []


@pytest.mark.parametrize(
    "source", ["a\n{{ nope.x }}", "a\r\n{% if true %}{{ 1 + 'a' }}{% endif %}"]
)
def test_errors_name_the_line(source):
    assert "(line 2)" in by_us(source, {}).text


@pytest.mark.parametrize("source", ["a\n{% for x in %}", "\n{{ (1 }}", "\r\n{% nope %}"])
def test_broken_templates_name_the_line(source):
    result = by_us(source, {})
    assert result.kind == "broken"
    assert "line 2: " in result.text
