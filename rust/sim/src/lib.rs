//! Executors that compute nothing, so that the host side can be measured and tested without a
//! model.
//!
//! `SimExecutor` completes each step after the time that a roofline profile gives. `VirtualSim`
//! completes steps when a test says so and checks every plan against the executor's contract. Both
//! answer with a fixed natural text.
#![forbid(unsafe_code)]

mod answer;
mod error;
mod kv_model;
mod profile;
mod sim_executor;
mod text;
mod virtual_sim;

pub use answer::Answers;
pub use error::SimError;
pub use profile::Profile;
pub use sim_executor::{SimConfig, SimExecutor};
pub use text::TEXT;
pub use virtual_sim::{Outcome, TAINTED_TOKEN, VirtualDriver, VirtualSim};
