//! Metrics: vLLM's names, so that existing dashboards and routers work, and our own. The engine thread
//! writes (one relaxed store each), a scrape reads. Refusals are counted on the thread that refuses.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_core::{SchedulerStats, SleepLevel};

use crate::device::{DeviceCount, DeviceOwn};
use crate::histogram::Histogram;

/// Declares `Metrics`. Each counter and each histogram is declared once, in the list below: its field,
/// its name and help in Prometheus, and a histogram's buckets.
macro_rules! metrics {
    (
        counters { $($counter:ident, $counter_name:literal, $counter_help:literal;)* }
        histograms { $($histogram:ident, $buckets:expr, $name:literal, $help:literal;)* }
    ) => {
        /// Everything that `/metrics` shows of one engine.
        #[derive(Debug)]
        pub(crate) struct Metrics {
            $(#[doc = $counter_help] pub(crate) $counter: AtomicU64,)*
            $(#[doc = $help] pub(crate) $histogram: Histogram,)*
            pub(crate) finished_stop: AtomicU64,
            pub(crate) finished_length: AtomicU64,
            pub(crate) finished_abort: AtomicU64,
            pub(crate) finished_error: AtomicU64,
            pub(crate) gauges: Gauges,
            pool: PoolSize,
            device: Option<Arc<dyn DeviceOwn>>,
        }

        impl Metrics {
            /// `device`: what the device counts, if it does.
            pub(crate) fn new(pool: PoolSize, device: Option<Arc<dyn DeviceOwn>>) -> Self {
                Self {
                    $($counter: AtomicU64::new(0),)*
                    $($histogram: $buckets,)*
                    finished_stop: AtomicU64::new(0),
                    finished_length: AtomicU64::new(0),
                    finished_abort: AtomicU64::new(0),
                    finished_error: AtomicU64::new(0),
                    gauges: Gauges::default(),
                    pool,
                    device,
                }
            }

            /// See `DeviceOwn::seal`.
            pub(crate) fn seal_device(&self) -> bool {
                self.device.as_ref().is_none_or(|device| device.seal())
            }

            /// Name, help and value of every counter.
            fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, &AtomicU64)> {
                let gauges = &self.gauges;
                [
                    $(($counter_name, $counter_help, &self.$counter),)*
                    (PREFIX_QUERIES, "Tokens looked up.", &gauges.prefix_queries),
                    (PREFIX_HITS, "Tokens found.", &gauges.prefix_hits),
                    // As vLLM called them before 0.9, and production-stack reads them.
                    (GPU_PREFIX_QUERIES, "Old name of the same.", &gauges.prefix_queries),
                    (GPU_PREFIX_HITS, "Old name of the same.", &gauges.prefix_hits),
                    (PREEMPTIONS, "Preemptions.", &gauges.preemptions),
                ]
                .into_iter()
            }

            /// Name, help and value of every histogram.
            fn histograms(&self) -> impl Iterator<Item = (&'static str, &'static str, &Histogram)> {
                [$(($name, $help, &self.$histogram),)*].into_iter()
            }
        }
    };
}

metrics! {
    counters {
        prompt_tokens, "vllm:prompt_tokens_total", "Prompt tokens computed or cached.";
        generation_tokens, "vllm:generation_tokens_total", "Tokens generated.";
        rejections, "vllm:admission_rejections_total", "Refused: the queue was full.";
        steps, "ingle:steps_total", "Steps that ended.";
        returns, "ingle:model_returns_total", "Returns of the weights into memory.";
        frames_sent, "ingle:frames_sent_total", "Writes by the engine to a socket.";
        frames_queued, "ingle:frames_queued_total", "Writes left to the event loop.";
        slow_readers, "ingle:slow_readers_total", "Streams ended: reader too slow.";
    }
    histograms {
        time_to_first_token, Histogram::seconds(TTFT_SECONDS),
            "vllm:time_to_first_token_seconds", "From arrival.";
        inter_token_latency, Histogram::seconds(ITL_SECONDS),
            "vllm:inter_token_latency_seconds", "Between tokens.";
        e2e_latency, Histogram::seconds(REQUEST_SECONDS),
            "vllm:e2e_request_latency_seconds", "From arrival to end.";
        queue_time, Histogram::seconds(REQUEST_SECONDS),
            "vllm:request_queue_time_seconds", "Before the first step.";
        prefill_time, Histogram::seconds(REQUEST_SECONDS),
            "vllm:request_prefill_time_seconds", "First step to token.";
        decode_time, Histogram::seconds(REQUEST_SECONDS),
            "vllm:request_decode_time_seconds", "First token to end.";
        inference_time, Histogram::seconds(REQUEST_SECONDS),
            "vllm:request_inference_time_seconds", "First step to end.";
        time_per_output_token, Histogram::seconds(ITL_SECONDS),
            "vllm:request_time_per_output_token_seconds", "Mean of a request.";
        request_prompt_tokens, Histogram::numbers(TOKENS),
            "vllm:request_prompt_tokens", "Prompt lengths.";
        request_generation_tokens, Histogram::numbers(TOKENS),
            "vllm:request_generation_tokens", "Output lengths.";
        request_params_n, Histogram::numbers(&[1, 2, 5, 10, 20]),
            "vllm:request_params_n", "n asked for.";
        request_params_max_tokens, Histogram::numbers(TOKENS),
            "vllm:request_params_max_tokens", "max_tokens in force.";
        give_back, Histogram::seconds(ITL_SECONDS),
            "ingle:kv_give_back_seconds", "From the demand for KV memory to its return.";
        iteration_tokens, Histogram::numbers(ITERATION_TOKENS),
            "vllm:iteration_tokens_total", "Tokens generated by a step.";
    }
}

/// Copies of the scheduler's own numbers, refreshed with each step.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) blocks_used: AtomicU64,
    pub(crate) blocks_total: AtomicU64,
    pub(crate) prefix_queries: AtomicU64,
    pub(crate) prefix_hits: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    /// 0 awake, else 1 + the level of the sleep.
    rest: AtomicU64,
}

impl Gauges {
    /// Takes the scheduler's numbers. Engine thread only.
    pub(crate) fn refresh(&self, stats: &SchedulerStats) {
        let used = stats.num_held_blocks + stats.num_leaving_blocks;
        for (gauge, value) in [
            (&self.running, u64::from(stats.num_running)),
            (&self.waiting, u64::from(stats.num_waiting)),
            (&self.blocks_used, u64::from(used)),
            (&self.blocks_total, u64::from(stats.num_blocks)),
            (&self.prefix_queries, stats.counters.prefix_cache_queries),
            (&self.prefix_hits, stats.counters.prefix_cache_hits),
            (&self.preemptions, stats.counters.preemptions),
        ] {
            gauge.store(value, Ordering::Relaxed);
        }
    }

    /// `None` while the engine is awake.
    pub(crate) fn sleep_level(&self) -> Option<SleepLevel> {
        let level = self.rest.load(Ordering::Acquire).checked_sub(1)?;
        SleepLevel::ALL.into_iter().find(|each| *each as u64 == level)
    }

    pub(crate) fn set_sleep_level(&self, level: Option<SleepLevel>) {
        self.rest.store(level.map_or(0, |level| 1 + level as u64), Ordering::Release);
    }

    fn hit_rate(&self) -> f64 {
        read(&self.prefix_hits) as f64 / (read(&self.prefix_queries).max(1)) as f64
    }

    fn usage(&self) -> f64 {
        read(&self.blocks_used) as f64 / (read(&self.blocks_total).max(1)) as f64
    }
}

/// The KV pool, for `cache_config_info`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolSize {
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
}

/// Prometheus text of all engines of all models; each family is declared once and has a sample of
/// every engine.
///
/// `exemplars`: with the traces of requests, which only OpenMetrics has a place for.
pub(crate) fn render(models: &[(&str, Vec<&Metrics>)], exemplars: bool) -> String {
    let mut engines = Vec::new();
    for (model_name, metrics) in models {
        let model_name = escape_label(model_name);
        engines.extend(metrics.iter().enumerate().map(|(number, metrics)| Labelled {
            labels: format!("engine=\"{number}\",model_name=\"{model_name}\""),
            metrics,
        }));
    }
    let mut out = String::with_capacity(24 * 1024 * engines.len());
    render_gauges(&mut out, &engines);
    render_counters(&mut out, &engines);
    render_device(&mut out, &engines);
    render_histograms(&mut out, &engines, exemplars);
    out
}

/// One engine and the labels of its samples.
struct Labelled<'a> {
    labels: String,
    metrics: &'a Metrics,
}

fn render_gauges(out: &mut String, engines: &[Labelled<'_>]) {
    for (name, help, read) in GAUGES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for Labelled { labels, metrics } in engines {
            let _ = writeln!(out, "{name}{{{labels}}} {}", read(&metrics.gauges));
        }
    }
    let name = "vllm:engine_sleep_state";
    let _ = writeln!(out, "# HELP {name} 1 for the state it is in.\n# TYPE {name} gauge");
    for Labelled { labels, metrics } in engines {
        let level = metrics.gauges.sleep_level();
        for (state, is_in) in [
            ("awake", level.is_none()),
            ("paused", level == Some(SleepLevel::Pause)),
            ("weights_offloaded", level == Some(SleepLevel::Offload)),
            ("discard_all", level == Some(SleepLevel::Discard)),
        ] {
            let is_in = u8::from(is_in);
            let _ = writeln!(out, "{name}{{{labels},sleep_state=\"{state}\"}} {is_in}");
        }
    }
    let name = "vllm:cache_config_info";
    let _ = writeln!(out, "# HELP {name} Sizes of the KV pool.\n# TYPE {name} gauge");
    for Labelled { labels, metrics } in engines {
        let PoolSize { block_size, num_blocks } = metrics.pool;
        let _ = writeln!(
            out,
            "{name}{{{labels},block_size=\"{block_size}\",num_gpu_blocks=\"{num_blocks}\"}} 1"
        );
    }
}

fn render_counters(out: &mut String, engines: &[Labelled<'_>]) {
    let Some(first) = engines.first() else { return };
    for (number, (name, help, _)) in first.metrics.counters().enumerate() {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for Labelled { labels, metrics } in engines {
            let value = metrics.counters().nth(number).map_or(0, |(_, _, value)| read(value));
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
    }
    let name = "vllm:request_success_total";
    let _ = writeln!(out, "# HELP {name} Requests by how they ended.\n# TYPE {name} counter");
    for Labelled { labels, metrics } in engines {
        for (reason, value) in [
            ("stop", &metrics.finished_stop),
            ("length", &metrics.finished_length),
            ("abort", &metrics.finished_abort),
            ("error", &metrics.finished_error),
        ] {
            let value = read(value);
            let _ = writeln!(out, "{name}{{{labels},finished_reason=\"{reason}\"}} {value}");
        }
    }
}

/// What devices count of their own. All engines have devices of one kind.
fn render_device(out: &mut String, engines: &[Labelled<'_>]) {
    let counts: Vec<(&str, Vec<DeviceCount>)> = engines
        .iter()
        .filter_map(|each| Some((each.labels.as_str(), each.metrics.device.as_ref()?.counts())))
        .collect();
    let Some((_, families)) = counts.first() else { return };
    for (number, family) in families.iter().enumerate() {
        let DeviceCount { name, help, kind, label, .. } = family;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, counts) in &counts {
            for (state, value) in &counts[number].values {
                let _ = writeln!(out, "{name}{{{labels},{label}=\"{state}\"}} {value}");
            }
        }
    }
}

fn render_histograms(out: &mut String, engines: &[Labelled<'_>], exemplars: bool) {
    let Some(first) = engines.first() else { return };
    for (number, (name, help, _)) in first.metrics.histograms().enumerate() {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for Labelled { labels, metrics } in engines {
            if let Some((_, _, histogram)) = metrics.histograms().nth(number) {
                histogram.render(out, name, labels, exemplars);
            }
        }
    }
}

fn read(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

/// Name, help and value of every gauge.
type GaugeRow = (&'static str, &'static str, fn(&Gauges) -> f64);

const GAUGES: [GaugeRow; 7] = [
    ("vllm:num_requests_running", "Requests in the batch.", |gauges| read(&gauges.running) as f64),
    ("vllm:num_requests_waiting", "Requests in the queue.", |gauges| read(&gauges.waiting) as f64),
    ("vllm:num_requests_swapped", "Always 0: nothing is swapped.", |_| 0.0),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", Gauges::usage),
    ("ingle:kv_cache_blocks", "KV blocks that the pool has.", |gauges| {
        read(&gauges.blocks_total) as f64
    }),
    ("vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc.", Gauges::usage),
    (
        "vllm:gpu_prefix_cache_hit_rate",
        "Cached share of the tokens looked up, since the start.",
        Gauges::hit_rate,
    ),
];

fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The scheduler counts these.
const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
const GPU_PREFIX_QUERIES: &str = "vllm:gpu_prefix_cache_queries_total";
const GPU_PREFIX_HITS: &str = "vllm:gpu_prefix_cache_hits_total";
const PREEMPTIONS: &str = "vllm:num_preemptions_total";

// vLLM's buckets (vllm/v1/metrics/loggers.py), in microseconds: other bounds would make the quantiles
// of existing panels jump.
const TTFT_SECONDS: &[u64] = &[
    1_000,
    5_000,
    10_000,
    20_000,
    40_000,
    60_000,
    80_000,
    100_000,
    250_000,
    500_000,
    750_000,
    1_000_000,
    2_500_000,
    5_000_000,
    7_500_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    640_000_000,
    2_560_000_000,
];
const ITL_SECONDS: &[u64] = &[
    10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 20_000_000, 40_000_000, 80_000_000,
];
const REQUEST_SECONDS: &[u64] = &[
    300_000,
    500_000,
    800_000,
    1_000_000,
    1_500_000,
    2_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    40_000_000,
    50_000_000,
    60_000_000,
    120_000_000,
    240_000_000,
    480_000_000,
    960_000_000,
    1_920_000_000,
    7_680_000_000,
];
const ITERATION_TOKENS: &[u64] =
    &[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];
const TOKENS: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::add;

    #[derive(Debug)]
    struct Counting;

    impl DeviceOwn for Counting {
        fn counts(&self) -> Vec<DeviceCount> {
            let values = vec![("a", 7), ("b", 8)];
            vec![DeviceCount { name: "own", help: "Own.", kind: "gauge", label: "state", values }]
        }

        fn seal(&self) -> bool {
            true
        }
    }

    #[test]
    fn test_what_a_device_counts_is_shown_with_the_engine_s_labels() {
        let of = |device| render(&[("m", vec![&Metrics::new(PoolSize::default(), device)])], false);
        assert!(!of(None).contains("own"));
        let shown = of(Some(Arc::new(Counting)));
        assert!(shown.contains("\nown{engine=\"0\",model_name=\"m\",state=\"a\"} 7\n"));
    }

    /// Prometheus refuses a text that declares a family twice.
    #[test]
    fn every_family_is_declared_once_and_has_a_sample_of_each_engine() {
        let metrics = |num_blocks| {
            let device: Option<Arc<dyn DeviceOwn>> = Some(Arc::new(Counting));
            Metrics::new(PoolSize { block_size: 16, num_blocks }, device)
        };
        let (first, second) = (metrics(5), metrics(6));
        add(&second.steps, 3);
        let one = render(&[("m", vec![&first])], false);
        let two = render(&[("m", vec![&first, &second])], false);
        let declared = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(declared(&two), declared(&one));
        let samples = |text: &str, engine: &str| -> Vec<String> {
            let of_engine = text.lines().filter(|line| line.contains(engine));
            of_engine.map(|line| line.replace(engine, "")).collect()
        };
        let of_first = samples(&two, "engine=\"0\",");
        assert_eq!(of_first, samples(&one, "engine=\"0\","));
        assert_eq!(samples(&two, "engine=\"1\",").len(), of_first.len());
        assert!(two.contains("ingle:steps_total{engine=\"1\",model_name=\"m\"} 3\n"));
        assert!(two.contains("num_gpu_blocks=\"6\"} 1\n"));
    }
}
