//! Loops that look for one item among many: what they cost, and that they print what they would if they went on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ingle_jinja::{Context, Effort, RenderError, Source, Template};
use serde_json::json;

fn render(source: &str, messages: usize, effort: Effort) -> Result<String, RenderError> {
    let turn = |i| json!({"role": if i % 3 == 2 { "tool" } else { "user" }, "content": "hi"});
    let mut context = Context::default();
    let turns: Vec<_> = (0..messages).map(turn).collect();
    context.set("turns", json!(turns), Source::Request).unwrap();
    let template = Template::new(source).unwrap();
    template.render(&context, effort, &|format| Ok(format.to_owned())).map(|r| r.text.to_string())
}

/// The turn before each turn and the results behind it, as templates find them without `break`.
const BACK: &str = "{%- for turn in turns -%}{%- set last = namespace(role=None, found=false) -%}\
    {%- for j in range(loop.index0 - 1, -1, -1) -%}\
    {%- if not last.found -%}{%- if turns[j]['role'] != 'tool' -%}\
    {%- set last.role = turns[j]['role'] -%}{%- set last.found = true -%}{%- endif -%}{%- endif -%}\
    {%- endfor -%}{{ last.role }} {% endfor -%}";
const FORWARD: &str = "{%- for turn in turns -%}{%- set scan = namespace(over=false, n=0) -%}\
    {%- for k in range(loop.index0 + 1, turns | length) -%}\
    {%- if scan.over -%}{%- elif turns[k]['role'] != 'tool' -%}{%- set scan.over = true -%}\
    {%- else -%}{%- set scan.n = scan.n + 1 -%}{%- endif -%}\
    {%- endfor -%}{{ scan.n }} {% endfor -%}";
const BOTH: &str = "{%- for turn in turns -%}{%- set next = namespace(role=None, found=false) -%}\
    {%- for k in range(loop.index0 + 1, turns | length) -%}\
    {%- if not next.found and turns[k]['role'] != 'tool' -%}\
    {%- set next.role = turns[k]['role'] -%}{%- set next.found = true -%}{%- endif -%}\
    {%- endfor -%}{{ next.role }} {% endfor -%}";

#[test]
fn a_search_at_each_of_many_turns_ends_where_it_has_found() {
    for source in [BACK, FORWARD, BOTH] {
        // Twice as many turns cost twice as much: each of these would cost a hundred times the brief budget.
        assert!(render(source, 5_000, Effort::Full).is_ok(), "{source}");
        let text = render(source, 7, Effort::Brief).unwrap();
        let want = match source {
            BACK => "None user user user user user user ",
            FORWARD => "0 1 0 0 1 0 0 ",
            _ => "user user user user user user None ",
        };
        assert_eq!(text, want);
    }
}

#[test]
fn a_loop_that_may_do_something_later_goes_on() {
    let all = "{% set n = namespace(x=0, y=false) %}";
    for (body, want) in [
        // The condition depends on the item, on `loop`, or on a call.
        ("{% for i in range(4) %}{% if i == 2 %}a{% endif %}{% endfor %}", "a"),
        ("{% for i in [0, 1] %}{% if i %}a{% endif %}{% endfor %}", "a"),
        ("{% for i in range(3) %}{% if loop.last %}a{% endif %}{% endfor %}", "a"),
        (
            "{% for i in range(3) %}{% if not loop.first and n.y %}{% else %}a{% endif %}{% endfor %}",
            "aaa",
        ),
        ("{% for a, b in [(1, 0), (0, 1)] %}{% if b %}a{% endif %}{% endfor %}", "a"),
        // Another branch, or text beside the `if`, does something in each round.
        ("{% for i in range(3) %}{% if n.y %}a{% else %}b{% endif %}{% endfor %}", "bbb"),
        ("{% for i in range(3) %}{% if n.y %}a{% elif i %}b{% endif %}{% endfor %}", "bb"),
        ("{% for i in range(3) %}{% if n.y %}a{% endif %}-{% endfor %}", "---"),
        ("{% for i in range(3) %}{% if n.y %}{% endif %}{{ i }}{% endfor %}", "012"),
        // The condition holds later because a round did something.
        (
            "{% for i in range(4) %}{% if n.x %}{% else %}{% if i == 1 %}{% set n.x = 1 %}{% endif %}a{% endif %}\
             {% endfor %}",
            "aa",
        ),
        ("{% for i in range(3) %}{% if n.y %}a{% endif %}{% else %}b{% endfor %}", ""),
        ("{% for i in range(0) %}{% if n.y %}a{% endif %}{% else %}b{% endfor %}", "b"),
        (
            "{% for i in range(3) if i %}{% if not n.y %}{{ loop.length }}{% endif %}{% endfor %}",
            "22",
        ),
        (
            "{% for i in range(5, 0, -2) %}{{ i }}{{ loop.revindex }}{{ loop.nextitem }} {% endfor %}",
            "533 321 11 ",
        ),
    ] {
        assert_eq!(render(&format!("{all}{body}"), 1, Effort::Full).unwrap(), want, "{body}");
    }
    // An error that only a later item of a generator raises is raised.
    let source = "{% set n = namespace(y=false) %}\
        {% for i in [1, 'a'] | map('abs') %}{% if n.y %}a{% endif %}{% endfor %}";
    assert!(matches!(render(source, 1, Effort::Full), Err(RenderError::Failed { .. })));
}
