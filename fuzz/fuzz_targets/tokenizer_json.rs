//! libFuzzer's entry for the target `tokenizer_json`; `tools/libfuzzer` builds and runs it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ingle_fuzz::libfuzzer::run("tokenizer_json", input));
