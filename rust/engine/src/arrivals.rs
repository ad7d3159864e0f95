//! [3] Requests that arrive on the engine thread: they enter the scheduler and become known to the
//! committer. Engine thread.

use std::sync::Arc;

use crate::engine_thread::EngineThread;
use crate::presence::Presence;
use crate::rest::{ASLEEP, Wakefulness};
use crate::submission::Submission;
use crate::tenant_load::TenantLoad;

impl EngineThread {
    pub(crate) fn admit(&mut self, submission: Submission, tenant: &Arc<TenantLoad>) {
        let Submission { stream, requests } = submission;
        let key = stream.key;
        let metrics = &self.shared.metrics;
        let trace = stream.trace_id();
        metrics.request_params_n.observe(u64::from(stream.n));
        for prompt in &stream.prompts {
            metrics.request_prompt_tokens.observe_of(prompt.ids.len() as u64, trace);
        }
        self.committer.insert(stream);
        self.committer.tenants.entry(tenant.id).or_insert_with(|| Arc::clone(tenant));
        if self.wakefulness != Wakefulness::Awake && self.presence == Presence::Here {
            // It came while the engine fell asleep; later ones are refused on their callers' threads.
            self.committer.end_with_error(key, ASLEEP, "asleep", 503);
            return self.drop_from(key, 0, tenant);
        }
        let now = self.committer.now;
        for (at, request) in requests.into_iter().enumerate() {
            metrics.request_params_max_tokens.observe(u64::from(request.stop.max_tokens));
            let Err(error) = self.scheduler.admit(request, now) else { continue };
            // Checked on the caller's thread, so this is our own mistake; the request still ends.
            self.committer.end_with_error(key, &error.to_string(), "not_admitted", 500);
            return self.drop_from(key, at, tenant);
        }
        if let Some(turns) = &mut self.turns {
            turns.arrived();
        }
        self.committer.want_masks(key);
    }

    /// Drops a request whose choices from `at` on were not admitted.
    fn drop_from(&mut self, key: u64, at: usize, tenant: &TenantLoad) {
        if let Some(stream) = self.committer.streams.get_mut(&key) {
            let missing = &mut stream.choices[at..];
            self.shared.release(tenant, missing.len() as u32);
            missing.iter_mut().for_each(|choice| choice.is_over = true);
        }
        self.committer.drop_stream(key, &mut self.scheduler, &mut self.core_events);
    }
}
