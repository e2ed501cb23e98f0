"""Small chat templates, one for each thing that the language has, for where real ones do not reach.

`MADE` give a prompt for some chat at least; `REFUSED` refuse all, or do not compile.
"""

from __future__ import annotations

MADE: dict[str, str] = {
    "all": "{{ messages | tojson }}{{ tools | tojson }}{{ documents | tojson }}{{ add_generation_prompt | tojson }}",
    "all as Python": "{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}",
    "tojson options": (
        "{{ messages | tojson(indent=2) }}{{ messages | tojson(ensure_ascii=true) }}{{ tools | "
        "tojson(sort_keys=true) }}{{ tools | tojson(separators=(',', ':')) }}{{ messages | tojson(false, 1, (' ,', "
        "'=')) }}{{ tools | tojson(indent='-') }}{{ messages | tojson(indent=0) }}{{ messages | "
        "tojson(ensure_ascii=none, separators=none) }}"
    ),
    "tojson of odd values": (
        "{{ [1e400, -1e400, 0.1, 1e22, true, none, 'a' | e, (1, 2), {1: 2, none: 3, 2.5: 4, true: 5}] | tojson }}"
    ),
    "break": (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{{ loop.last }};{% endfor %}"
    ),
    "continue": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index }}{{ m.content }}"
        "{% endfor %}"
    ),
    "break in two loops": (
        "{% for m in messages %}{% for c in m.content %}{% if loop.index == 3 %}{% break %}{% endif %}{{ c }}"
        "{% endfor %};{% endfor %}"
    ),
    "else of a loop": (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.id }}{% else %}none of {{ m.role }}{% endfor %}"
        "{% endfor %}"
    ),
    "filtered loop": (
        "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% endfor %}"
    ),
    "names of a loop": (
        "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
        "{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}"
        "{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}"
    ),
    "recursive loop": (
        "{% for key, value in tools[0].items() recursive %}{{ loop.depth }}{{ key }}={% if value is mapping %}"
        "({{ loop(value.items()) }}){% else %}{{ value }}{% endif %};{% endfor %}"
    ),
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{{ m.content }}{% endfor %}",
    "generation with white space": (
        "{% for m in messages %}\n  {%- generation -%}\n {{ m.role }}\n {%- endgeneration %}\n x\n{% endfor %}"
    ),
    "generation sets": (
        "{% for m in messages %}{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{{ m.content }}"
        "{% endgeneration %}{{ a }}{% endfor %}"
    ),
    "generation in a macro": (
        "{% macro say(m) %}{% generation %}{{ m.content }}{{ loop }}{% endgeneration %}{% endmacro %}"
        "{% for m in messages %}{{ say(m) }}{% endfor %}"
    ),
    "generation around a loop": (
        "{% generation %}{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
        "{% endgeneration %}"
    ),
    "generation in a generation": (
        "{% generation %}a{% generation %}{{ messages[0].content }}{% endgeneration %}b{% endgeneration %}"
    ),
    "generation in escaped text": (
        "{% autoescape true %}{% generation %}<{{ messages[0].content }}{% endgeneration %}{% endautoescape %}"
    ),
    "namespace": (
        "{% set ns = namespace(a=0, items=[], n=none, keys='k') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}"
        "{% set ns.items = ns.items + [m.role] %}{% set ns.last = m %}{% endfor %}{{ ns.a }}{{ ns.items }}{{ ns.n }}"
        "{{ ns.keys }}{{ ns.last.content }}{{ ns.values is defined }}{{ ns.zzz }}"
    ),
    "namespace of a mapping": "{% set ns = namespace(messages[0], z=1) %}{{ ns.role }}{{ ns.content }}{{ ns.z }}",
    "scopes": (
        "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% with x = 5, y = x %}{{ x }}{{ y }}"
        "{% endwith %}{% endfor %}{{ x }}"
    ),
    "set of a block": (
        "{% set x %}\n{{ messages[0].content }}\n{% endset %}{{ x }}{{ x | length }}{% set y | upper %}a{{ x }}"
        "{% endset %}{{ y }}"
    ),
    "macros": (
        "{% macro f(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs | tojson }}{% endmacro %}{{ f(1) }}"
        "{{ f(1, 2, 3, 4, 5) }}{{ f(1, z=2) }}{{ f(b=messages[0].content) }}{{ f.name }}{{ f.arguments }}"
        "{{ f.caller }}"
    ),
    "call": (
        "{% macro f(m) %}[{{ caller(m.role) if caller }}]{% endmacro %}{% for m in messages %}{% call(r) f(m) %}"
        "{{ r }}{{ m.content }}{% endcall %}{{ f(m) }}{% endfor %}"
    ),
    "macro that calls itself": (
        "{% macro show(v) %}{% if v is mapping %}{ {%- for k in v | sort %}{{ k }}:{{ show(v[k]) }},{% endfor -%}"
        " }{% elif v is iterable and v is not string %}[{% for i in v %}{{ show(i) }},{% endfor %}]{% else %}{{ v }}"
        "{% endif %}{% endmacro %}{{ show(tools) }}{{ show(messages) }}"
    ),
    "blocks": (
        "{% block a %}{{ messages[0].role }}{% endblock %}{{ self.a() }}{% for m in messages %}{% block b scoped %}"
        "{{ m.role }}{% endblock %}{% endfor %}"
    ),
    "filter block": (
        "{% filter upper %}{{ messages[0].content }}straße{% endfilter %}{% filter indent(2) | trim %}"
        "\na\nb{% endfilter %}"
    ),
    "raw and comments": "{% raw %}{{ x }}{% y %}{% endraw %}{# a {{ b }} #}\n{#- c -#}\n{{ '{{' }}{{ \"%}\" }}",
    "white space": (
        "  {% if true %}  \n  a  \n  {% endif %}\n\n  {%- if true -%}\n b \n{%- endif +%}\n {%+ if true %}"
        "c{% endif %}\n\n"
    ),
    "template of CRLF": "a\r\n{% if true %}\r\n b\r\n{% endif %}\r\n{{ messages[0].content }}\r\n\r\n",
    "ends with lines": "{{ messages[0].content }}\n\n",
    "ends with one line": "{{ messages[0].content }}\n",
    "only text": "No messages here: content.",
    "nothing": "",
    "line statements": "# for m in messages\n## no comment\n{{ messages | length }}",
    "strings": "{{ 'a\\n\\t\\u00e9\\x41\\'\\\\' ~ \"\\\"b\" ~ 'two' 'parts' }}{{ 'é東😀\\U0001F600' }}",
    "numbers": (
        "{{ 1_000 }}{{ 0x1f }}{{ 0b11 }}{{ 1e3 }}{{ 7 // 2 }}{{ 7 / 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 1.0 }}"
        "{{ 10 ** 30 }}{{ 0.1 + 0.2 }}"
    ),
    "comparisons": (
        "{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ not 1 }}{{ none == false }}{{ 1 == true }}{{ 'a' ~ 1 ~ none }}"
        "{{ [1] + [2] }}"
    ),
    "slices": (
        "{% for m in messages %}{{ m.content[:3] }}{{ m.content[::-1] }}{{ m.content[-2:] }}{% endfor %}"
        "{{ messages[1:] | length }}{{ messages[::-1][0].role }}"
    ),
    "items and keys": (
        "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{{ m.keys() | list }}{{ m | "
        "items | list }}{{ m | dictsort }}{% endfor %}"
    ),
    "get": (
        "{% for m in messages %}{{ m.get('name') }}{{ m.get('zzz', 'none') }}{{ m['name'] }}{{ m.name | "
        "default('d') }}{{ m.zzz | default(m.role, true) }}{% endfor %}"
    ),
    "methods of strings": (
        "{% for m in messages %}{% set c = m.content | string %}{{ c.strip() }}{{ c.lstrip('\\n') }}"
        "{{ c.split('\\n') }}{{ c.split() }}{{ c.upper() }}{{ c.title() }}{{ c.startswith(('a', 'H')) }}"
        "{{ c.replace('e', 'E') }}{{ c.splitlines() }}{{ c.partition(' ') }}{{ c.find('e') }}{{ c.isspace() }}"
        "{{ c.capitalize() }}{{ c.swapcase() }}{{ c.casefold() }}{{ c.encode() }}{{ c.rsplit(' ', 1) }}"
        "{{ c.removeprefix('H') }}{{ c.zfill(4) }}{% endfor %}"
    ),
    "format": (
        "{% for m in messages %}{{ '{}-{0.role}'.format(m) if false }}{{ '{0[role]}{0.role:>12}'.format(m) }}"
        "{{ '%s %r' | format(m.role, m.content) }}{{ '%s' % m.role }}{% endfor %}"
    ),
    "filters of text": (
        "{% for m in messages %}{% set c = m.content | string %}{{ c | trim }}{{ c | upper }}{{ c | lower }}{{ c | "
        "title }}{{ c | capitalize }}{{ c | length }}{{ c | wordcount }}{{ c | replace('e', 'x', 1) }}{{ c | "
        "indent(4, true) }}{{ c | indent('> ', blank=true) }}{{ c | truncate(9) }}{{ c | wordwrap(20) }}{{ c | "
        "center(40) }}{{ c | e }}{{ c | striptags }}{{ c | urlencode }}{{ c | reverse }}{{ c | first }}{{ c | list | "
        "last }}{{ c | int }}{{ c | float }}{{ c | urlize }}{% endfor %}"
    ),
    "filters of lists": (
        "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | "
        "list | length }}{{ messages | rejectattr('name', 'defined') | map(attribute='content') | list }}"
        "{{ messages | groupby('role') }}{{ messages | unique(attribute='role') | list }}{{ messages | "
        "sort(attribute='role', reverse=true) }}{{ messages | batch(2, 'x') | list }}{{ messages | slice(2) | list }}"
        "{{ messages | last }}{{ messages | map('length') | sum }}{{ [3, 1, 2] | sort | join }}{{ [1, [2]] | "
        "string }}{{ [0, 1, none, ''] | select | list }}{{ [1.5, 2] | max }}"
    ),
    "map of missing keys": (
        "{{ messages | map(attribute='zzz') | list }}{{ messages | map(attribute='zzz', default='d') | join }}"
    ),
    "random": "{{ [messages[0].role] | random }}",
    "tests": (
        "{% for m in messages %}{% for v in [m, m.content, m.role, m.zzz, none, 1, 1.5, true, [], messages, "
        "range(2), raise_exception] %}{{ [v is defined, v is none, v is string, v is mapping, v is iterable, "
        "v is sequence, v is number, v is integer, v is float, v is boolean, v is true, v is false, v is callable, "
        "v is sameas none, v is escaped] }}{% endfor %}{% endfor %}"
    ),
    "more tests": (
        "{{ 'upper' is filter }}{{ 'zzz' is filter }}{{ 'odd' is test }}{{ 3 is odd }}{{ 3 is divisibleby 3 }}"
        "{{ 'a' is in 'ab' }}{{ 'A' is upper }}{{ 1 is lt 2 }}{{ 1 is eq(1) }}"
    ),
    "no such filter where it is not reached": "{% if false %}{{ messages | zzz }}{% endif %}{{ messages[0].content }}",
    "no such variable": (
        "[{{ zzz }}]{{ zzz is defined }}{{ zzz | length }}{% for x in zzz %}{% endfor %}{% if zzz %}{% endif %}"
        "{{ zzz == zzz }}"
    ),
    "attribute of null": "{{ none.a }}{{ none['a'] }}[{{ none.a is defined }}]",
    "index out of range": "{{ messages[99] }}[{{ messages[99] is defined }}]{{ messages[-1].role }}",
    "reaches for a class": "{{ messages.__class__ }}",
    "reaches for a class quietly": "[{{ messages.__class__ is defined }}]",
    "reaches by a filter": "{{ messages | attr('__class__') }}",
    "reaches by a format": "{{ '{0.__class__}'.format(messages) }}",
    "range": "{{ range(3) | list }}{{ range(1, 9, 3) | list }}{{ range(0) }}{{ range(99999) | length }}",
    "other globals": (
        "{{ dict(a=1) }}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}"
        "{% set j = joiner('|') %}{{ j() }}{{ j() }}"
    ),
    "clock": (
        "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %d %b %j %% %-d') }}{{ strftime_now(format='%y') }}"
        "{{ strftime_now('') }}"
    ),
    "refuses where it is not reached": (
        "{% if not messages %}{{ raise_exception('none') }}{% endif %}{{ messages[0].content }}"
    ),
    "conditions": (
        "{{ 'a' if messages else 'b' }}[{{ 'a' if not messages }}]{{ (messages and 'c') or 'd' }}{{ '' or none or 0 }}"
    ),
    "values of lists": (
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% for x, (y, z) in [(1, (2, 3))] %}{{ x }}{{ y }}{{ z }}{% endfor %}"
        "{{ (1,) }}{{ {'b': 1, 'a': 2} }}"
    ),
    "spread": "{{ dict(**messages[0]) }}{{ range(*[1, 3]) | list }}",
    "escaped text": (
        "{% autoescape true %}{{ messages[0].content }}{{ '<b>' | safe }}{{ '<' ~ messages[0].content }}{{ tools | "
        "tojson }}{% endautoescape %}"
    ),
    "marked text": (
        "{% set x = messages[0].content | e %}{{ x.role }}{{ x.upper() }}{{ x ~ '<' }}{{ x + '<' }}{{ '<%s>' | e | "
        "format('<') }}{{ x | tojson }}{{ x is escaped }}"
    ),
    "content of parts": (
        "{% for m in messages %}{% for p in m.content %}{{ p.text if p.text is defined else p }}|{% endfor %}"
        "{% endfor %}{{ 'developer' }}"
    ),
    "keys named like methods": (
        "{% set d = {'items': 1, 'keys': 2, 'get': 3, 'a': 4, '__class__': 5, '_x': 6, 'pop': 7} %}{{ d['items'] }}"
        "{{ d['get'] }}{{ d.a }}{{ d._x }}{{ d['__class__'] }}{{ d.get('items') }}{{ d.items() | list }}"
        "{{ d['pop'] }}{{ d | attr('a') is defined }}{{ d | map('upper') | join }}"
    ),
    "keys of numbers": (
        "{% set d = {1: 'a', none: 'b', (1, 2): 'c'} %}{{ d[1] }}{{ d[none] }}{{ d[(1, 2)] }}{{ d.1 }}{{ [['x', "
        "'y']].0.1 }}"
    ),
    "same keys": "{{ {'a': 1, 'b': 2, 'a': 3} }}{{ {'a': 1, 'b': 2, 'a': 3} | tojson }}",
    "tools with a loop": (
        "{% for t in tools or [] %}{{ t.function.name }}{% for n, p in t.function.parameters.properties.items() %}"
        "{{ n }}:{{ p.type }}{{ p.items is callable }}{{ p['items'] is callable }}{{ p.enum | join('/') if p.enum }}"
        ";{% endfor %}{{ t.function.parameters.required }}{% endfor %}"
    ),
    "calls with a loop": (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set f = c.function %}{{ f.name }}"
        "{{ f.arguments | tojson }}{% for k, v in f.arguments.items() %}{{ k }}={{ v if v is string else v | "
        "tojson }};{% endfor %}{{ c | tojson }}{{ f.arguments.items is callable }}{% endfor %}{% endfor %}"
    ),
    "long chain": (
        "{% set a = {} %}{{ a.b is defined }}{{ [a" + ".b" * 120 + " is defined] if false }}{{ messages[0].role }}"
    ),
    "deep nesting": "{{ " + "[" * 60 + "messages[0].role" + "]" * 60 + " }}",
    "many branches": (
        "{% if false %}{% "
        + "".join(f"elif messages[0].role == 'r{n}' %}}{n}{{% " for n in range(150))
        + "else %}x{% endif %}"
    ),
}

REFUSED: dict[str, str] = {
    "tojson of undefined": "{{ messages[0].nothing | tojson }}",
    "tojson of a generator": "{{ messages | map(attribute='role') | tojson }}",
    "tojson of a set method": "{{ messages[0].items() | list | tojson }}{{ messages[0].keys() | tojson }}",
    "break out of a generation": "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "generation without an end": "{% generation %}x",
    "endless recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "division by zero": "{{ 1 / 0 }}",
    "comparison of kinds": "{{ 'a' < 1 }}",
    "sum of missing keys": "{{ messages | sum(attribute='zzz') }}",
    "no such filter": "{{ messages | zzz }}",
    "no such test": "{{ messages is zzz }}",
    "no such function": "{{ zzz() }}",
    "attribute of nothing": "{{ zzz.a }}",
    "attribute of a missing attribute": "{{ messages[0].zzz.a }}",
    "sum with nothing": "{{ 'a' + messages[0].zzz }}",
    "sum of kinds": "{{ 'a' + 1 }}",
    "changes a list": "{{ messages.append(1) }}",
    "changes a mapping": "{{ messages[0].update({'role': 'x'}) }}",
    "changes its own list": "{% set x = [] %}{{ x.append(1) }}",
    "long range": "{% for i in range(100001) %}{% endfor %}",
    "clock of a wrong kind": "{{ strftime_now(5) }}",
    "refuses": "{{ raise_exception('no ' ~ messages[0].role ~ ' é😀\n two') }}",
    "refuses with a number": "{{ raise_exception(5) }}",
    "refuses with nothing": "{{ raise_exception() }}",
    "include": "{% include 'a' %}",
    "include that may be missing": "{% include 'a' ignore missing %}",
    "import": "{% import 'a' as b %}",
    "extends": "{% extends 'a' %}",
    "do": "{% do messages.append(1) %}",
    "translations": "{% trans %}a{% endtrans %}",
    "debug": "{% debug %}",
    "does not parse": "{% if %}",
    "does not end": "{% for m in messages %}{{ m.role }}",
    "wrong end": "{% for m in messages %}{% endif %}",
    "unknown character": "{{ messages ? 1 }}",
    "names of Python": "{% set None = 1 %}{{ None }}",
    "too many loops": "{% for a in messages %}" * 21 + "{% endfor %}" * 21,
}
