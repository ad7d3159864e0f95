//! The engine from document to bytes, on a scripted executor: exact frames, stops, ends, faults.

mod bad_words;
mod balloon;
mod brief;
mod device;
mod ends;
mod frames;
mod guards;
mod harness;
mod log_probs;
mod multi_turn;
mod pairs;
mod prompt_logs;
mod refusals;
mod rest;
mod seals;
mod sockets;
mod stops;
mod structured;
mod swap;
mod traces;
mod whole_answers;
