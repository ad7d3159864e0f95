//! The units of work that a template pays with bound its time and memory: everything that a template can
//! call, and every operator, is repeated on large values until the budget of a brief rendering is spent.
//! Time and memory must stay in proportion. One test at a time, since it looks at the memory of the
//! process.
//!
//! CI tries a part that the seed `INGLE_FUZZ_SEED` chooses, `make soak` all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::time::Duration;

use ingle_fuzz::cost::{Cost, CountingAllocator, measured};
use ingle_fuzz::rng::Rng;
use ingle_jinja::{Context, Effort, Source, Template, names};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The most that a brief rendering of the inputs here may take; a full one may do ten times as much.
const MAX_CPU: Duration = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 20 });
const MAX_BYTES: usize = 12 << 20;
/// In CI, one of so many is tried.
const PART: usize = 40;

/// Large values of every type that templates have.
const VALUES: [&str; 17] = [
    "s",
    "text",
    "many",
    "wide",
    "'ab ' * 200000",
    "'é' * 150000",
    "nested",
    "flat",
    "words",
    "lists",
    "dicts",
    "map",
    "range(6000)",
    "range(6000) | list",
    "dict(range(6000) | map('string') | batch(2))",
    "17",
    "2.5",
];
const ARGUMENTS: [&str; 21] = [
    "",
    "s",
    "words",
    "flat",
    "'x'",
    "'x', 'yy'",
    "'', s",
    "'a', s",
    "2",
    "99999",
    "99999, 'x'",
    "'role'",
    "attribute='role'",
    "'upper'",
    "'equalto', 'user'",
    "'role', 'equalto', s",
    "indent=9",
    "separators=(s, s)",
    "*words",
    "**map",
    "sep, 3",
];

/// Every expression of the test, with `v` for the large value.
fn expressions() -> Vec<String> {
    let mut found = Vec::new();
    for (kind, name) in names() {
        for arguments in ARGUMENTS {
            match kind {
                "filter" => found.push(format!("v | {name}({arguments})")),
                "test" if name.chars().all(char::is_alphanumeric) => {
                    found.push(format!("v is {name}({arguments})"));
                    found.push(format!("v | select('{name}', {arguments}) | list"));
                }
                "test" => found.push(format!("v | select('{name}', {arguments}) | list")),
                "function" => {
                    found.push(format!("{name}(v, {arguments})"));
                    found.push(format!("{name}(*v, {arguments})"));
                    found.push(format!("{name}({arguments})"));
                }
                _ => found.push(format!("v.{name}({arguments})")),
            }
        }
    }
    for method in ["count", "index", "copy", "isdisjoint", "items", "next", "cycle"] {
        found.extend(ARGUMENTS.map(|arguments| format!("v.{method}({arguments})")));
    }
    let operators =
        ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "not in", "and", "or"];
    for operator in operators {
        for other in VALUES {
            found.push(format!("v {operator} ({other})"));
            found.push(format!("({other}) {operator} v"));
        }
    }
    found.extend(FORMATS.map(str::to_owned));
    for index in ["[0]", "['x']", "[s]", "[::2]", "[::-1]", "[5:-5]", ".role", "[flat]", "[17:]"] {
        found.push(format!("v{index}"));
    }
    found.extend(
        ["[v, v]", "{'a': v}", "(v,)", "not v", "-v", "v if v else v", "cycler(v)", "{v: 1}"]
            .map(str::to_owned),
    );
    found
}

/// Formats, which are written with `v` as an argument.
const FORMATS: [&str; 22] = [
    "'%c' % v",
    "'%s' % v",
    "'%r' % v",
    "'%a' % v",
    "'%d' % v",
    "'%e' % v",
    "'%x' % v",
    "'%9.3s' % v",
    "'%.*s' % (3, v)",
    "'%(x)s' % {'x': v}",
    "'%s%s' | format(v, v)",
    "'{}'.format(v)",
    "'{!r}'.format(v)",
    "'{!a:>9}'.format(v)",
    "'{:.3}'.format(v)",
    "'{0[0]}'.format(v)",
    "'{0.role}'.format(v)",
    "'{x}'.format(x=v)",
    "'{x}'.format_map({'x': v})",
    "v.format(v)",
    "v % v",
    "'{:{}}'.format(1, v)",
];

/// Statements, each one step of a loop, that use `v`.
const STATEMENTS: [&str; 20] = [
    "{% set y = f(v) %}",
    "{% set y = f(*v) %}",
    "{% set y = f(**v) %}",
    "{% set y = f(a=v) %}",
    "{% call f(v) %}{{ v }}{% endcall %}",
    "{% filter upper %}{{ v }}{% endfilter %}",
    "{% set y %}{{ v }}{% endset %}",
    "{% set ns.x = v %}",
    "{% set ns.x = [ns.x] %}",
    "{% set y = ns.x ~ v %}",
    "{% for a in v %}{% endfor %}",
    "{% for a in v %}{% break %}{% endfor %}",
    "{% for a, b in v %}{% endfor %}",
    "{% for a in v if a == v %}{% endfor %}",
    "{% for a in [v, v] %}{% set y = loop.changed(v) %}{{ loop.cycle(v) }}{{ loop.length }}{% endfor %}",
    "{% for a in [v] recursive %}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% set a, b = v %}",
    "{% with y = v %}{{ y is sameas(v) }}{% endwith %}",
    "{% if v == v and v in [v] %}{% endif %}",
    "{% set y = v if v is string and v | length > 3 else v | string %}",
];

/// Templates that do it again and again, and that print what comes of it.
fn sources() -> Vec<String> {
    let again = |value: &str, step: &str| {
        format!(
            "{{% macro f(a=1, b=2) %}}{{{{ a }}}}{{% endmacro %}}{{% set ns = namespace(x=1) %}}{{% set v = {value} %}}\
             {{% for i in range(99) %}}{{% for j in range(99) %}}{step}{{% endfor %}}{{% endfor %}}"
        )
    };
    let mut found = Vec::new();
    for value in VALUES {
        for expression in expressions() {
            found.push(again(value, &format!("{{% set y = {expression} %}}")));
            found.push(format!(
                "{{% set v = {value} %}}{{% set y = {expression} %}}{{{{ [y, y] }}}}{{{{ y }}}}"
            ));
        }
        found.extend(STATEMENTS.map(|statement| again(value, statement)));
    }
    found
}

/// What a request could bring, 12 kB in all.
fn input() -> Context {
    let mut context = Context::default();
    let words: Vec<String> = (0..200).map(|number| format!("word{number}")).collect();
    let map: Value =
        words.iter().map(|word| (word.clone(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let turns = vec![json!({"role": "user", "content": "x"}); 40];
    let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let values = [
        ("s", json!("x".repeat(1000))),
        ("sep", json!(", ")),
        ("text", json!("It is a <b>text</b>, in words & lines.\n".repeat(40))),
        ("wide", json!("é\u{301}日本\u{1f525}".repeat(60))),
        ("flat", json!((0..300).collect::<Vec<u32>>())),
        ("words", json!(words)),
        ("lists", json!(vec![json!([1, 2, 3]); 60])),
        ("dicts", json!(turns)),
        ("map", map),
        ("nested", nested),
    ];
    for (name, value) in values {
        context.set(name, value, Source::Request).unwrap();
    }
    // A text of many pieces that have different sources.
    let piece = |at: usize| {
        (json!("ab "), if at.is_multiple_of(2) { Source::Answer } else { Source::Request })
    };
    context.set_list("pieces", (0..100).map(piece).collect()).unwrap();
    context
}

fn cost_of(source: &str, context: &Context) -> Option<Cost> {
    let template = Template::new(&format!("{{% set many = pieces | join %}}{source}")).ok()?;
    let render =
        || template.render(context, Effort::Brief, &|format| Ok(format.to_owned())).is_ok();
    let (_, mut cost) = measured(render);
    // Other work on the machine makes an input dear once, not each time.
    for _ in 0..5 {
        if cost.cpu <= MAX_CPU {
            break;
        }
        cost.cpu = cost.cpu.min(measured(render).1.cpu);
    }
    Some(cost)
}

#[test]
fn test_every_operation_pays_for_its_time_and_memory() {
    let seed = std::env::var("INGLE_FUZZ_SEED").map_or(1, |text| text.parse().unwrap());
    let mut rng = Rng::new(seed);
    check(|| rng.below(PART) == 0);
}

#[test]
#[ignore = "long"]
fn test_every_operation_pays_on_every_value() {
    check(|| true);
}

/// Renders those templates that `is_chosen`.
fn check(mut is_chosen: impl FnMut() -> bool) {
    let (context, mut sources) = (input(), sources());
    assert!(names().count() > 100 && sources.len() > 150_000, "{}", sources.len());
    sources.retain(|_| is_chosen());
    let (mut wrong, mut costs) = (Vec::new(), Vec::new());
    for source in &sources {
        let Some(cost) = cost_of(source, &context) else { continue };
        costs.push((cost, source));
        if cost.cpu > MAX_CPU || cost.peak_bytes > MAX_BYTES {
            wrong.push(format!("{cost:?}: {source}"));
        }
    }
    costs.sort_by_key(|(cost, _)| cost.cpu);
    for (cost, source) in costs.iter().rev().take(5) {
        println!("{:?}: {source}", cost.cpu);
    }
    costs.sort_by_key(|(cost, _)| cost.peak_bytes);
    for (cost, source) in costs.iter().rev().take(5) {
        println!("{} KiB: {source}", cost.peak_bytes >> 10);
    }
    assert!(
        wrong.is_empty(),
        "{} of {} wrong:\n{}",
        wrong.len(),
        costs.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
