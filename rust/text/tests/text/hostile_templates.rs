//! No template and no message hangs, crashes or swells the process, at load or while rendering.

use std::time::{Duration, Instant};

use ingle_text::{ChatInput, ChatTemplate, TextError};
use serde_json::{Value, json};

/// Compiles and renders on a stack that is smaller than that of any thread which renders.
fn render_with(source: &str, messages: Value) -> Result<String, TextError> {
    let began = Instant::now();
    let rendered = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let render = || {
            let template = ChatTemplate::new(source, "<s>", "</s>")?;
            template.render(&ChatInput { messages, ..ChatInput::default() })
        };
        thread.spawn_scoped(scope, render).unwrap().join().unwrap()
    });
    let took = began.elapsed();
    assert!(took < MAX_TIME, "{took:?}: {source:.200}");
    rendered.map(|prompt| prompt.text())
}

fn render(source: &str) -> Result<String, TextError> {
    render_with(source, json!([{"role": "user", "content": "x"}]))
}

/// A list that holds another twice, that another twice, and so on.
fn doubled(times: usize) -> String {
    "{% set x = [1, 1] %}".to_owned() + &"{% set x = [x, x] %}".repeat(times)
}

#[test]
fn test_work_without_end_is_refused() {
    let doubling = format!("{{% set s = 'x' %}}{}", "{% set s = s ~ s %}".repeat(64));
    let adding = format!("{{% set s = [1] %}}{}", "{% set s = s + s %}".repeat(64));
    let grown = "{% set ns = namespace(x=['a' * 1000]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    let walks =
        ["{{ x }}", "{{ x | tojson }}", "{{ x ~ 1 }}", "{{ x | string }}", "{{ x | join }}"];
    let walks = walks.map(|walk| doubled(60) + walk);
    let compared = doubled(60) + "{% set y = x %}" + &doubled(60) + "{{ x == y }}{{ x in [y] }}";
    let fixed = [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ ([1] * 999999) | length }}{{ 2 in [1] * 999999 }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a\nb' | indent(10 ** 9) }}",
        "{{ [1] | batch(10 ** 9, 1) | list | length }}",
        "{{ [1] | slice(10 ** 9) | list | length }}",
        "{% set b = 'abc' * 99999 %}{{ b.replace('a', b) | length }}",
        "{% set b = 'abc' * 99999 %}{{ ([b] * 99999) | join | length }}",
        "{% set b = 'abc' * 99999 %}{{ ''.join([b] * 99999) | length }}",
        "{% set b = 'abc' * 99999 %}{{ b.startswith(([b ~ 'x'] * 99999,)[0]) }}",
        "{% set b = 'a' * 9999999 %}{{ b.split('a') | length }}",
        "{% set b = '\\n' * 9999999 %}{{ b.splitlines() | length }}",
        "{{ ('a' * 9999999) | list | length }}",
        "{{ [[1]] * 99999 | tojson(indent='x' * 9999) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        "{{ range(99999) | sort(attribute='0,' * 999) | list }}",
        "{{ range(99999) | unique | list }}",
        grown,
        &doubling,
        &adding,
        &compared,
    ];
    for source in fixed.into_iter().chain(walks.iter().map(String::as_str)) {
        let error = render(source).expect_err(source);
        let bounded =
            matches!(error, TextError::TemplateLimit { .. } | TextError::TemplateFailed(_));
        assert!(bounded, "{source:.80}: {error}");
        assert!(!error.to_string().contains('\n'), "{source:.80}: {error}");
    }
    let loops = render(fixed_loop()).unwrap_err().to_string();
    assert!(loops.contains("units of work"), "{loops}");
}

fn fixed_loop() -> &'static str {
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
}

#[test]
fn test_widths_and_ranges_are_bounded() {
    for source in [
        "{{ '%1000000000s' | format(1) }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%*s' | format(1000000000, 1) }}",
        "{{ range(10 ** 9) }}",
        "{{ 2 ** 999 }}",
        "{{ 10 ** 10000000 }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
    ] {
        assert!(matches!(render(source), Err(TextError::TemplateFailed(_))), "{source}");
    }
    assert_eq!(render("{{ 1.5 | round(10 ** 9) }}").unwrap(), "1.5");
}

#[test]
fn test_no_value_contains_itself() {
    for source in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [{'a': ns}] %}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}",
        "{% set ns = namespace() %}{% macro f() %}{{ ns }}{% endmacro %}{% set ns.x = f %}",
        "{% set ns = namespace() %}{% for i in [ns] %}{% set ns.x = loop %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = {'a': ns}.items %}",
        "{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}",
    ] {
        let error = render(source).expect_err(source).to_string();
        assert!(error.contains("cannot"), "{source}: {error}");
    }
    let deep = "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let error = render(deep).unwrap_err().to_string();
    assert!(error.contains("nested deeper than"), "{error}");
}

#[test]
fn test_recursion_ends_within_a_small_stack() {
    let nested = |inner: &str| {
        let levels = 60;
        let open = "{% if true %}{% for i in [1] %}".repeat(levels / 2);
        let close = "{% endfor %}{% endif %}".repeat(levels / 2);
        format!("{{% macro f(x) %}}{open}{inner}{close}{{% endmacro %}}{{{{ f(1) }}}}")
    };
    let parens = |inner: &str| format!("{{{{ {}{inner}{} }}}}", "[".repeat(40), "]".repeat(40));
    for source in [
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned(),
        nested(&parens("f(x)")),
        nested("{% set y %}{{ f(x) }}{% endset %}"),
        nested("{% filter upper %}{{ f(x) }}{% endfilter %}"),
        "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}".to_owned(),
        "{% for i in [[1]] recursive %}{% for j in [1] %}{{ loop.x }}{% endfor %}{{ [[[loop([i])]]] }}{% endfor %}".to_owned(),
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{{ f() }}".to_owned(),
        "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}".to_owned(),
        "{% macro f(x=f()) %}{{ x }}{% endmacro %}{{ f() }}".to_owned(),
    ] {
        assert!(matches!(render(&source), Err(TextError::TemplateFailed(_))), "{source}");
    }
}

#[test]
fn test_deep_values_and_sources_end_within_a_small_stack() {
    // As deep as a value may be, printed, compared, serialised and dropped.
    let deepest =
        "{% set ns = namespace(x=1) %}{% for i in range(199) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let walks = "{{ ns.x }}{{ ns.x | tojson }}{{ ns.x == ns.x }}{{ ns.x < ns.x }}{{ ns.x ~ 1 }}";
    render(&format!("{deepest}{walks}")).unwrap();
    let long_rows = [
        "{{ 1".to_owned() + &" + 1".repeat(20_000) + " }}",
        "{{ 1".to_owned() + &" and 1".repeat(20_000) + " }}",
        "{{ 1".to_owned() + &"**1".repeat(20_000) + " }}",
        "{% if 0 %}".to_owned() + &"{% elif 0 %}".repeat(10_000) + "{% endif %}",
    ];
    for source in long_rows {
        render(&source).unwrap();
    }
}

#[test]
fn test_hostile_sources_are_refused_at_load() {
    let most = 250_000;
    let many = |text: &str| text.repeat(most / text.len());
    let sources = [
        "{{ ".to_owned() + &many("-") + "1 }}",
        "{{ ".to_owned() + &many("not ") + "1 }}",
        "{{ ".to_owned() + &many("(") + "1",
        "{{ ".to_owned() + &many("[") + "1",
        "{{ ".to_owned() + &many("{1:") + "1",
        "{{ x".to_owned() + &many(".a") + " }}",
        "{{ x".to_owned() + &many("[0]") + " }}",
        "{{ x".to_owned() + &many("()") + " }}",
        "{{ x".to_owned() + &many("|a") + " }}",
        "{{ x".to_owned() + &many(" is a") + " }}",
        "{{ 1".to_owned() + &many(" if 1 else 1") + " }}",
        "{{ 1".to_owned() + &many(" if 1") + " }}",
        "{{ 1".to_owned() + &many(" == 1 ~ -1") + " + }}",
        many("{% if 1 %}"),
        many("{% for a in b %}"),
        many("{% set a %}"),
        many("{% macro a() %}"),
        many("{% call a() %}"),
        "{% set ".to_owned() + &many("(") + "a",
        "{% set a".to_owned() + &many(".a") + " = 1 %}",
        "{% if 1 %}".to_owned() + &many("{% elif 1 %}"),
        "{{ '".to_owned() + &many("\\u") + "' }}",
        "{{ ".to_owned() + &many("'a' ") + " + }}",
        many("{{"),
        many("{#"),
        many("{% raw %}"),
        many("'\"{{'"),
        "a".repeat(most * 2),
        "{{ 99999999999999999999999999999999999999999999 }}".to_owned(),
    ];
    for source in sources {
        let error = render(&source).expect_err(&source[..20]);
        assert!(matches!(error, TextError::Load { .. }), "{:.20}: {:.200}", source, error);
        let message = error.to_string();
        assert!(message.starts_with("chat template: "), "{message:.200}");
        assert!(!message.contains('\n') && message.len() < 300, "{message:.400}");
    }
    let broken = render("a\n{% for x in %}").unwrap_err().to_string();
    assert!(broken.starts_with("chat template: line 2: "), "{broken}");
    for missing in ["{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}"] {
        let error = render(missing).unwrap_err().to_string();
        assert!(error.contains("line 1: there are no other templates"), "{error}");
    }
}

#[test]
fn test_nothing_but_values_can_be_reached() {
    for source in [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ cycler.__init__ }}",
        "{{ x | missing }}",
        "{{ x is missing }}",
        "{{ messages[0].content() }}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
    ] {
        assert!(matches!(render(source), Err(TextError::TemplateFailed(_))), "{source}");
    }
}

#[test]
fn test_hostile_messages_cost_no_more_than_their_size() {
    let qwen = include_str!("../chat/templates/qwen3.jinja");
    let think = "</think>".repeat(100_000);
    let private: String = ('\u{F0000}'..).take(60_000).collect::<String>().repeat(4);
    for content in [think, private, "<".repeat(1_000_000)] {
        let message = json!({"role": "assistant", "content": content});
        let rendered = render_with(qwen, json!([{"role": "user", "content": content}, message]));
        assert!(rendered.is_ok());
    }
    let deep = (0..1000).fold(json!(1), |inner, _| json!([inner]));
    let messages = json!([{"role": "user", "content": "x", "extra": deep}]);
    let error = render_with(qwen, messages).unwrap_err().to_string();
    assert!(error.starts_with("messages: nested deeper than"), "{error}");
}

/// Every thread that renders has 2 MiB or more; the rest is for what called.
const STACK_BYTES: usize = 1 << 20;
/// A hundred times what it takes on an idle machine.
const MAX_TIME: Duration = Duration::from_secs(20);
