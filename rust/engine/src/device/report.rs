//! What each device needs on this machine and what is missing, for `ingle doctor`. Any thread; reads
//! only.

use serde_json::{Value, json};

use crate::device::cuda_report;
use crate::device::places::Places;

/// By name of the device. Blocking, up to a second a GPU.
pub(crate) fn devices(places: &Places) -> Value {
    let mut cuda = cuda_report::of_machine(places);
    if let Value::Object(cuda) = &mut cuda {
        cuda.insert("ranks".to_owned(), json!({ "value": "1", "cost": ONE_RANK }));
    }
    json!({
        "cpu": { "usable": true, "ranks": RANKS_IN_TURN },
        "sim": { "usable": true },
        "cuda": cuda,
    })
}

const RANKS_IN_TURN: &str =
    "any number (--tensor-parallel-size), computed in turn, to test a division";
const ONE_RANK: &str =
    "a model must fit one GPU: --tensor-parallel-size is refused until two GPUs have run it";

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever this machine has: no GPU is usable where neither NVRTC nor kernels are found.
    #[test]
    fn test_a_library_that_is_not_there_makes_gpus_unusable() {
        let nvrtc = "/nowhere/libnvrtc.so.13";
        let places = json!({ "cuda_libraries": { "nvrtc": nvrtc } });
        let report = devices(&serde_json::from_value(places).unwrap());
        let cuda = &report["cuda"];
        assert!(cuda["nvrtc"]["missing"].to_string().contains(nvrtc));
        assert_eq!(cuda["usable"], false);
        assert!(cuda["driver"].is_i64() || cuda["device_count"] == 0);
    }
}
