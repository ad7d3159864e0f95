//! What one rank of a group owns: its part of the model on its device, the stream on which its steps run, and the graphs
//! recorded for it. Engine thread, after the load.

use std::sync::Arc;

use crate::graphs::Graphs;
use crate::model::Model;
use crate::stream::Stream;

/// One rank. A model that is not divided has one.
#[derive(Debug)]
pub(crate) struct Rank {
    // Fields drop in this order: threads that use the model first.
    pub(crate) graphs: Option<Graphs>,
    pub(crate) stream: Stream,
    pub(crate) model: Arc<Model>,
}
