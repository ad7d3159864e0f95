//! How long chat templates take to render. Reads JSON lines `{"name": ..., "source": ..., "messages": [...],
//! "tools": null}` and prints for each the name, the microseconds of a rendering (the median of rounds, its
//! input built anew as for a request) and the number of characters. `tools/bench_templates.py` makes the
//! cases and compares with jinja2.

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use ingle_text::{ChatInput, ChatTemplate};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let source = case["source"].as_str().ok_or("a case without a source")?;
        let template = ChatTemplate::new(source, "<s>", "</s>")?;
        let input = ChatInput {
            messages: case["messages"].clone(),
            tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let chars = template.render(&input)?.text().chars().count();
        let us = median_us(|| template.render(&input).map(|_| ()))?;
        writeln!(out, "{}", json!({ "name": case["name"], "us": us, "chars": chars }))?;
    }
    Ok(())
}

/// The median time of one call, of rounds that together take a quarter of a second.
fn median_us<E>(mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    call()?;
    let per_round = (ROUND.as_nanos() / began.elapsed().as_nanos().max(1)).max(1);
    let mut rounds = Vec::new();
    for _ in 0..NUM_ROUNDS {
        let began = Instant::now();
        for _ in 0..per_round {
            call()?;
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e6 / per_round as f64);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    Ok(rounds[NUM_ROUNDS / 2])
}

const NUM_ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(10);
