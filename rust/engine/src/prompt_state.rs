//! What a client request knows of one of its prompts: ids, and log-probs if asked for. Engine thread.

use std::sync::Arc;

use ingle_core::{TokenId, TokenLogProbs};

use crate::engine_view::QueuedPrompt;
use crate::logprobs::LogEntry;
use crate::prompt_logs::PromptLogs;

/// What is known of one prompt.
pub(crate) struct PromptState {
    pub(crate) ids: Arc<[TokenId]>,
    /// With echo and log-probs: characters of the text before each prompt token.
    pub(crate) offsets: Vec<u32>,
    /// Prompt tokens whose log-probs are known or, for the first, do not exist.
    num_seen: usize,
    /// Which parts of the answer show them.
    logs: PromptLogs,
    /// Entries of `prompt_logprobs`, which is separate from the answer's own log-probs.
    log_probs: Vec<LogEntry>,
    /// With several engines: set until the prompt has been computed.
    pub(crate) queued: Option<QueuedPrompt>,
}

impl PromptState {
    pub(crate) fn new(ids: Arc<[TokenId]>, offsets: Vec<u32>, logs: PromptLogs) -> Self {
        let first = logs.separate.map(|_| LogEntry::first(ids[0].0));
        let log_probs = first.into_iter().collect();
        Self { ids, offsets, num_seen: 1, logs, log_probs, queued: None }
    }

    /// Takes the log-probs of the tokens that follow those seen; returns the entries that choices echo, if they do.
    pub(crate) fn take(&mut self, sources: Vec<TokenLogProbs>) -> Option<Vec<LogEntry>> {
        let mut entries = Vec::with_capacity(sources.len());
        for source in sources {
            let offset = self.offsets.get(self.num_seen).copied().unwrap_or(0);
            entries.push(LogEntry::new(source, offset));
            self.num_seen += 1;
        }
        if let Some(top) = self.logs.separate {
            self.log_probs.extend(entries.iter().map(|entry| entry.with_top(top)));
        }
        let top = self.logs.echoed?;
        if self.logs.computed() > Some(top) {
            entries.iter_mut().for_each(|entry| entry.top.truncate(top as usize));
        }
        Some(entries)
    }

    /// The entries of `prompt_logprobs`, if the client asked for them.
    pub(crate) fn separate(&self) -> Option<&[LogEntry]> {
        self.logs.separate.map(|_| self.log_probs.as_slice())
    }
}
