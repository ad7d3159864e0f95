//! Templates that try to hang, crash or swell the process. Each ends with an error or a text, soon, in
//! little memory, on a small stack. One test, since it looks at the process as a whole.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use ingle_jinja::{Context, Effort, RenderError, Source, Template};
use serde_json::json;

/// What one attack came to.
enum End {
    Broken,
    Text(usize),
    Raised,
    Failed,
    Limit,
}

fn attack(source: &str) -> End {
    let Ok(template) = Template::new(source) else { return End::Broken };
    let mut context = Context::default();
    let messages = json!([{"role": "user", "content": "x < y"}]);
    context.set("messages", messages, Source::Request).unwrap();
    context.set("x", json!("x".repeat(1000)), Source::Request).unwrap();
    match template.render(&context, Effort::Full, &|format| Ok(format.to_owned())) {
        Ok(rendered) => End::Text(rendered.text.len()),
        Err(RenderError::Raised(_)) => End::Raised,
        Err(RenderError::Failed { message, .. }) => {
            assert!(message.len() < 1000, "{message}");
            End::Failed
        }
        Err(RenderError::Limit { .. }) => End::Limit,
    }
}

/// Values that hold one value many times over, then something that walks through them.
fn doubled() -> Vec<String> {
    let uses = [
        "{{ x }}",
        "{{ x | tojson }}",
        "{{ x == y }}",
        "{{ x ~ 1 }}",
        "{{ x | join }}",
        "{{ x < y }}",
        "{{ x in [y] }}",
        "{{ [x, y] | unique | list | length }}",
        "{{ '%s' % [x] }}",
        "{{ '{}'.format(x) }}",
        "{{ x | string | length }}",
        "{{ [x, y] | sort | length }}",
        "{{ [{'a': x}, {'a': y}] | groupby('a') }}",
        "{{ [x, y] | max }}",
        "{{ x | tojson(indent=4) }}",
        "{{ {(x,): 1} }}",
        "{{ [x].index(y) }}",
        "{{ [x].count(y) }}",
        "{{ x | pprint }}",
    ];
    let build = |open: &str, close: &str| {
        let twice =
            |name: &str| format!("{{% set {name} = {open}{name}, {name}{close} %}}").repeat(60);
        format!("{{% set x = [1] %}}{{% set y = [1] %}}{}{}", twice("x"), twice("y"))
    };
    let mut sources: Vec<String> = uses.iter().map(|last| build("[", "]") + last).collect();
    let dict = "{% set x = {'a': x, 'b': x} %}".repeat(60);
    sources.push(format!("{dict}{{{{ x }}}}"));
    sources.push(format!("{dict}{{{{ x | tojson(sort_keys=true) }}}}"));
    sources.push(build("(", ")") + "{{ {x: 1} }}");
    sources.push(build("(", ")") + "{{ [x, y] | unique | list | length }}");
    sources.push("{% set s = 'x' %}".to_owned() + &"{% set s = s ~ s %}".repeat(64));
    sources.push("{% set s = 'x' %}".to_owned() + &"{% set s = s + s %}".repeat(64));
    sources.push("{% set s = [1] %}".to_owned() + &"{% set s = s + s %}".repeat(64));
    sources.push("{% set s = x %}".to_owned() + &"{% set s = s.replace('x', s) %}".repeat(9));
    sources.push("{% set s = 'x' %}".to_owned() + &"{% set s = s.join([s, s, s]) %}".repeat(40));
    sources.push("{% set s = '%s%s' %}".to_owned() + &"{% set s = s % (s, s) %}".repeat(40));
    sources
}

/// Values that hold themselves, or are nested without end.
fn nested() -> Vec<String> {
    let itself = ["ns", "[ns]", "{'a': ns}", "(ns, ns)", "[ns, [ns, ns]]"];
    let uses = [
        "{{ ns }}",
        "{{ ns == other }}",
        "{{ ns.x == other.x }}",
        "{{ ns | tojson }}",
        "{{ [ns] | tojson }}",
    ];
    let mut sources = Vec::new();
    for value in itself {
        for last in uses {
            sources.push(format!(
                "{{% set ns = namespace() %}}{{% set other = namespace() %}}{{% set ns.x = {value} %}}\
                 {{% set other.x = {} %}}{last}",
                value.replace("ns", "other")
            ));
        }
    }
    let deeper = [
        "[ns.x]",
        "{'a': ns.x}",
        "(ns.x,)",
        "cycler(ns.x)",
        "joiner(ns.x)",
        "[ns.x] | map('list')",
        "dict(a=ns.x)",
        "[[ns.x]] | batch(1) | list",
        "[ns.x] | groupby('a')",
        "namespace(a=ns.x)",
    ];
    for value in deeper {
        sources.push(format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(90000) %}}{{% set ns.x = {value} %}}\
             {{% endfor %}}{{{{ ns.x | tojson }}}}"
        ));
    }
    sources.push(
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% for j in [ns.x] %}\
         {% set ns.x = loop %}{% endfor %}{% endfor %}{{ ns.x }}"
            .into(),
    );
    for (open, close) in [
        ("{{ (", ") }}"),
        ("{{ [", "] }}"),
        ("{{ {1: ", "} }}"),
        ("{% if x %}", "{% endif %}"),
        ("{% for a in x %}", "{% endfor %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% macro a() %}", "{% endmacro %}"),
        ("{% call a() %}", "{% endcall %}"),
    ] {
        let (open, close) = (open.trim_end_matches("}} "), close);
        sources.push(open.repeat(20_000) + "1" + &close.repeat(20_000));
    }
    for part in ["(", "[", "-", "not ", "a if a else ", "f(", "{1:", "a[", "x|f(", "x is f("] {
        sources.push(format!("{{{{ {}", part.repeat(60_000)));
        sources.push(format!("{{{{ {}1", part.repeat(60_000)));
    }
    for part in
        [" + 1", " ~ 1", ".a", "[0]", "()", "|upper", " or 1", " and 1", " == 1", " if 1", "**1"]
    {
        sources.push(format!("{{{{ 1{} }}}}", part.repeat(40_000)));
    }
    sources
}

/// Much work or memory in one step.
const LARGE: &[&str] = &[
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:>1000000000}'.format('a') }}",
    "{{ '{:.1000000000f}'.format(1.0) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%0*d' % (1000000000, 1) }}",
    "{{ '{:01000000000,}'.format(1) }}",
    "{{ ('{:' ~ '9' * 400 ~ '}').format(1) }}",
    "{{ ('{' * 100000).format(1) }}",
    "{{ ('{0.' ~ 'a.' * 100000 ~ 'b}').format(1) }}",
    "{{ 'x' * 10**12 }}",
    "{{ [1] * 10**12 }}",
    "{{ '' * 10**30 }}",
    "{{ [] * 10**30 }}",
    "{{ ([1] * 300000) * 300000 }}",
    "{{ range(10**12) }}",
    "{{ range(0, 10**30, 10**25) | list }}",
    "{{ range(99999) | map('string') | join(x * 1000) }}",
    "{{ [x * 1000] * 100000 | length }}",
    "{{ x.center(10**10) }}",
    "{{ x.ljust(10**10) }}{{ x.zfill(10**10) }}",
    "{{ ('\\t' * 100000).expandtabs(10**9) }}",
    "{{ x | center(10**10) }}",
    "{{ x | indent(10**10) }}",
    "{{ ('\\n' * 100000) | indent(100000) }}",
    "{{ [[1, 2], [3]] | tojson(separators=(',' * 1000000, ':')) }}",
    "{{ ([1] * 100000) | tojson(separators=(',' * 1000000, ':')) }}",
    "{{ ([[[[[1]]]]] * 1000) | tojson(indent=10**9) }}",
    "{{ (x * 1000).replace('x', x * 1000) }}",
    "{{ (x * 1000).replace('', x * 1000) }}",
    "{{ (x * 1000) | replace('x', x * 1000) }}",
    "{{ (x * 1000).split('x') | length }}",
    "{{ (x * 10000).split('') }}",
    "{{ (x * 1000) | list | sort | length }}",
    "{{ (x * 1000) | list | unique | list | length }}",
    "{{ range(99999) | unique | list | length }}",
    "{{ range(99999) | list | unique | list | length }}",
    "{{ range(99999) | batch(10**12, 1) | list }}",
    "{{ range(10) | slice(10**12, 1) | list }}",
    "{{ range(99999) | groupby('real') | length }}",
    "{{ range(99999) | sort(attribute='a,b,c,d,e,f,g') | length }}",
    "{{ range(99999) | sum(start=[]) }}",
    "{{ ([[1]] * 90000) | sum(start=[]) | length }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 2 ** 127 }}{{ -(2 ** 126) * 4 }}",
    "{{ 170141183460469231731687303715884105727 + 1 }}",
    "{{ (x * 500) | urlencode }}{{ ('<' * 900000) | e | e }}",
    "{{ 'a' in (x * 1000) }}{{ (x * 1000).count('xx') }}",
    "{{ (x * 1000).strip(x * 1000) }}",
    "{{ ('ab' * 100000).strip('cd' * 100000) }}",
    "{{ dict(range(99999) | map('list')) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ x * 1000 }}{% endfor %}",
    "{% for i in range(99999) %}{% set a = namespace(b=i, c=i, d=i) %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
    "{% set ns = namespace(l='') %}{% for i in range(99999) %}{% set ns.l = ns.l ~ i %}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{{ f(x) ~ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ x(x) }}{% endmacro %}{{ f(f) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(a=f()) %}{% endmacro %}{{ f() }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% set ns = namespace(f=1) %}{% macro g() %}{{ ns.f() }}{% endmacro %}{% set ns.f = g %}{{ g() }}",
    "{% for i in range(99999) %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% set v = 'ab ' * 3000000 %}{% set d = dict(range(20) | map('string') | batch(2)) %}\
     {% for i in range(999) %}{% for j in range(99) %}{% set y = v in d %}{% endfor %}{% endfor %}",
    "{% set v = 'ab ' * 3000000 %}{% for i in range(999) %}{% for j in range(99) %}{% set y = v[0] %}\
     {% endfor %}{% endfor %}",
    "{% for i in range(999) %}{% set y = (x * 20).title() %}{% endfor %}",
    "{% set v = '\u{301}' * 1000 %}{% for i in range(9999) %}{% set y = v.isprintable() %}{% endfor %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}{{ y }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ self._TemplateReference__context }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ raise_exception('x' * 100000) }}",
    "{{ lipsum(100000000) }}",
    "{{ [1, 2, 3][::-9223372036854775808] }}{{ 'abc'[-10**30:10**30:10**29] }}",
    "{{ [nan, 1.0, 'x' | float('nan'), 0.0] | sort }}",
    "{{ (range(9999) | map('string') | map('float')) | sort | length }}",
    "{{ strftime_now('%Y' * 100000) }}",
    "{% set a = cycler(*range(99999)) %}{% for i in range(99999) %}{{ a.items }}{% endfor %}",
    "{{ x | truncate(10**30) }}{{ x | truncate(-1) }}{{ x | round(10**30) }}",
    "{{ 1.5 | round(10**9) }}{{ 1.5 | round(-10**9) }}{{ 15 | round(-10**9) }}{{ 1e308 * 10 | int }}",
];

/// Sources that are hard to read.
fn sources() -> Vec<String> {
    let branches = |count: usize| {
        let one = |at: usize| format!("{{% if a{at} %}}{{% set a{at} = 1 %}}{{% endif %}}");
        (0..count).map(one).collect::<String>()
    };
    vec![
        "{".repeat(250_000),
        "{{".repeat(100_000),
        "{%".repeat(100_000),
        "{#".repeat(100_000),
        "{% raw %}".repeat(25_000),
        "{% raw %}".to_owned() + &"{% endraw".repeat(25_000),
        "{{ '".to_owned() + &"\\".repeat(250_000),
        "{{ ".to_owned() + &"'a'".repeat(80_000) + " }}",
        "{{ ".to_owned() + &"9".repeat(250_000) + " }}",
        "{{ 1e".to_owned() + &"9".repeat(250_000) + " }}",
        "{{ ".to_owned() + &"a".repeat(250_000) + " }}",
        " \n".repeat(120_000) + "{%- if true %}",
        branches(6000),
        "{% if x %}".to_owned() + &"{% elif x %}".repeat(20_000) + "{% endif %}",
        "{% set a = 1 %}".repeat(17_000),
        "{% macro a() %}{% endmacro %}".repeat(8_000),
        "x".repeat(300_000),
    ]
}

/// Peak of the process's resident memory, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Processor time of the process so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

#[test]
fn test_hostile_templates_end_soon_in_little_memory_on_a_small_stack() {
    let large = LARGE.iter().map(|source| (*source).to_owned()).collect();
    let attacks: Vec<String> =
        [doubled(), nested(), large, sources()].into_iter().flatten().collect();
    assert!(attacks.len() >= 100);
    // Without optimisation a step takes some times as long.
    let most = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 200 });
    let stack = 1 << 20;
    let (mut limits, mut wrong) = (0, Vec::new());
    let mut peak = peak_memory();
    let start = peak;
    for source in &attacks {
        std::thread::scope(|scope| {
            let work = || {
                let began = cpu_time();
                let end = attack(source);
                (end, cpu_time() - began)
            };
            let thread = std::thread::Builder::new().stack_size(stack).spawn_scoped(scope, work);
            let (end, took) = thread.unwrap().join().unwrap();
            let now = peak_memory();
            let shown = || source.chars().take(200).collect::<String>();
            if took > most {
                wrong.push(format!("{took:?}: {}", shown()));
            }
            if now > peak && now > start + (64 << 20) {
                wrong.push(format!("{} MiB: {}", (now - start) >> 20, shown()));
            }
            peak = peak.max(now);
            match end {
                End::Text(length) => assert!(length < 64 << 20, "{length}: {}", shown()),
                End::Limit => limits += 1,
                End::Broken | End::Raised | End::Failed => {}
            }
        });
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // They are attacks: many must have met the budget.
    assert!(limits >= 40, "{limits} of {}", attacks.len());
}
