//! Counters in vLLM's names, so that existing dashboards and routers work, and ours. The engine thread
//! writes (one relaxed store each), a scrape reads; refusals are counted by whoever refuses.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_core::SchedulerStats;
use ingle_cuda::{LaunchCounters, LaunchStats};

use crate::histogram::Histogram;

/// Everything that `/metrics` shows of the engine.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generation_tokens: AtomicU64,
    pub(crate) finished_stop: AtomicU64,
    pub(crate) finished_length: AtomicU64,
    pub(crate) finished_abort: AtomicU64,
    pub(crate) finished_error: AtomicU64,
    pub(crate) rejections: AtomicU64,
    pub(crate) steps: AtomicU64,
    /// Frames that this process's own thread sent on a client's socket.
    pub(crate) frames_sent: AtomicU64,
    /// Frames handed to the event loop.
    pub(crate) frames_queued: AtomicU64,
    pub(crate) slow_readers: AtomicU64,
    pub(crate) gauges: Gauges,
    /// Written by the device's own threads.
    launches: Option<Arc<LaunchCounters>>,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) e2e_latency: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    pub(crate) inference_time: Histogram,
    pub(crate) time_per_output_token: Histogram,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    pub(crate) request_params_n: Histogram,
    pub(crate) request_params_max_tokens: Histogram,
    pub(crate) iteration_tokens: Histogram,
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
}

impl Metrics {
    /// `launches`: of a device that has them.
    pub(crate) fn new(launches: Option<Arc<LaunchCounters>>) -> Self {
        let request = || Histogram::seconds(REQUEST_SECONDS);
        Self {
            prompt_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
            finished_stop: AtomicU64::new(0),
            finished_length: AtomicU64::new(0),
            finished_abort: AtomicU64::new(0),
            finished_error: AtomicU64::new(0),
            rejections: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            frames_sent: AtomicU64::new(0),
            frames_queued: AtomicU64::new(0),
            slow_readers: AtomicU64::new(0),
            gauges: Gauges::default(),
            launches,
            time_to_first_token: Histogram::seconds(TTFT_SECONDS),
            inter_token_latency: Histogram::seconds(ITL_SECONDS),
            e2e_latency: request(),
            queue_time: request(),
            prefill_time: request(),
            decode_time: request(),
            inference_time: request(),
            time_per_output_token: Histogram::seconds(ITL_SECONDS),
            request_prompt_tokens: Histogram::numbers(TOKENS),
            request_generation_tokens: Histogram::numbers(TOKENS),
            request_params_n: Histogram::numbers(&[1, 2, 5, 10, 20]),
            request_params_max_tokens: Histogram::numbers(TOKENS),
            iteration_tokens: Histogram::numbers(ITERATION_TOKENS),
        }
    }

    /// Prometheus text. `block_size` and `num_blocks` go into `cache_config_info`.
    pub(crate) fn render(&self, model_name: &str, block_size: u32, num_blocks: u32) -> String {
        let mut out = String::with_capacity(24 * 1024);
        let labels = format!("engine=\"0\",model_name=\"{}\"", escape_label(model_name));
        self.render_gauges(&mut out, &labels, block_size, num_blocks);
        self.render_counters(&mut out, &labels);
        if let Some(launches) = &self.launches {
            render_launches(&launches.read(), &mut out, &labels);
        }
        self.render_histograms(&mut out, &labels);
        out
    }

    fn render_gauges(&self, out: &mut String, labels: &str, block_size: u32, num_blocks: u32) {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let gauges = &self.gauges;
        let usage = read(&gauges.blocks_used) as f64 / (read(&gauges.blocks_total).max(1)) as f64;
        for (name, help, value) in [
            ("vllm:num_requests_running", "Requests in the batch.", read(&gauges.running) as f64),
            ("vllm:num_requests_waiting", "Requests in the queue.", read(&gauges.waiting) as f64),
            ("vllm:num_requests_swapped", "Always 0: nothing is swapped.", 0.0),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage),
            ("vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc.", usage),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
        let name = "vllm:cache_config_info";
        let _ = writeln!(out, "# HELP {name} Sizes of the KV pool.\n# TYPE {name} gauge");
        let _ = writeln!(
            out,
            "{name}{{{labels},block_size=\"{block_size}\",num_gpu_blocks=\"{num_blocks}\"}} 1"
        );
    }

    fn render_counters(&self, out: &mut String, labels: &str) {
        let gauges = &self.gauges;
        for (name, help, value) in [
            ("vllm:prompt_tokens_total", "Prompt tokens computed or cached.", &self.prompt_tokens),
            ("vllm:generation_tokens_total", "Tokens generated.", &self.generation_tokens),
            ("vllm:prefix_cache_queries_total", "Tokens looked up.", &gauges.prefix_queries),
            ("vllm:prefix_cache_hits_total", "Tokens found.", &gauges.prefix_hits),
            ("vllm:num_preemptions_total", "Preemptions.", &gauges.preemptions),
            ("vllm:admission_rejections_total", "Refused: the queue was full.", &self.rejections),
            ("ingle:steps_total", "Steps that ended.", &self.steps),
            ("ingle:frames_sent_total", "Writes by the engine to a socket.", &self.frames_sent),
            ("ingle:frames_queued_total", "Writes left to the event loop.", &self.frames_queued),
            ("ingle:slow_readers_total", "Streams ended: reader too slow.", &self.slow_readers),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
            let _ = writeln!(out, "{name}{{{labels}}} {}", value.load(Ordering::Relaxed));
        }
        let name = "vllm:request_success_total";
        let _ = writeln!(out, "# HELP {name} Requests by how they ended.\n# TYPE {name} counter");
        for (reason, value) in [
            ("stop", &self.finished_stop),
            ("length", &self.finished_length),
            ("abort", &self.finished_abort),
            ("error", &self.finished_error),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{{labels},finished_reason=\"{reason}\"}} {value}");
        }
    }

    fn render_histograms(&self, out: &mut String, labels: &str) {
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "From arrival.", &self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between tokens.", &self.inter_token_latency),
            ("vllm:e2e_request_latency_seconds", "From arrival to end.", &self.e2e_latency),
            ("vllm:request_queue_time_seconds", "Before the first step.", &self.queue_time),
            ("vllm:request_prefill_time_seconds", "First step to token.", &self.prefill_time),
            ("vllm:request_decode_time_seconds", "First token to end.", &self.decode_time),
            ("vllm:request_inference_time_seconds", "First step to end.", &self.inference_time),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean of a request.",
                &self.time_per_output_token,
            ),
            ("vllm:request_prompt_tokens", "Prompt lengths.", &self.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Output lengths.", &self.request_generation_tokens),
            ("vllm:request_params_n", "n asked for.", &self.request_params_n),
            (
                "vllm:request_params_max_tokens",
                "max_tokens in force.",
                &self.request_params_max_tokens,
            ),
            ("vllm:iteration_tokens_total", "Tokens generated by a step.", &self.iteration_tokens),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
            histogram.render(out, name, labels);
        }
    }
}

fn render_launches(stats: &LaunchStats, out: &mut String, labels: &str) {
    let name = "ingle:device_graphs";
    let _ = writeln!(out, "# HELP {name} Graphs of whole steps.\n# TYPE {name} gauge");
    for (state, value) in [
        ("ready", stats.graphs_ready),
        ("waiting", stats.graphs_waiting),
        ("failed", stats.graphs_failed),
    ] {
        let _ = writeln!(out, "{name}{{{labels},state=\"{state}\"}} {value}");
    }
    let name = "ingle:device_steps_total";
    let help = "Steps that the device got, as one graph or kernel by kernel.";
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
    for (launch, value) in [("graph", stats.steps_replayed), ("plain", stats.steps_plain)] {
        let _ = writeln!(out, "{name}{{{labels},launch=\"{launch}\"}} {value}");
    }
}

fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

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

    #[test]
    fn test_launches_are_shown_for_a_device_that_counts_them() {
        let of = |launches| Metrics::new(launches).render("m", 16, 1);
        assert!(!of(None).contains("ingle:device_"));
        assert!(of(Some(Arc::default())).contains("ingle:device_steps_total{engine=\"0\""));
        let stats = LaunchStats {
            graphs_ready: 1,
            graphs_waiting: 2,
            graphs_failed: 3,
            steps_replayed: 4,
            steps_plain: 5,
        };
        let mut text = String::new();
        render_launches(&stats, &mut text, "e=\"0\"");
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "ingle:device_graphs{e=\"0\",state=\"ready\"} 1",
                "ingle:device_graphs{e=\"0\",state=\"waiting\"} 2",
                "ingle:device_graphs{e=\"0\",state=\"failed\"} 3",
                "ingle:device_steps_total{e=\"0\",launch=\"graph\"} 4",
                "ingle:device_steps_total{e=\"0\",launch=\"plain\"} 5",
            ]
        );
    }
}
