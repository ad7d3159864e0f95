//! libFuzzer's entry for the target `request`; `tools/libfuzzer` builds and runs it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ingle_fuzz::libfuzzer::run("request", input));
