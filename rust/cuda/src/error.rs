//! Errors of loading onto the device and of running on it. Plain data, any thread.

use ingle_core::ExecutorError;

/// A failure of this crate. The message is one line and names the call, library, kernel or tensor.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// None of the places that were tried holds the library.
    #[error("NVIDIA library not found: {reasons}")]
    LibraryNotFound {
        /// One reason per place.
        reasons: String,
    },
    /// The library is older than the headers that this was written against.
    #[error("{library} has no function {symbol}: update it")]
    MissingSymbol {
        /// The file.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// The driver works, but there is no GPU.
    #[error("no CUDA device: {0}")]
    NoDevice(String),
    /// A driver call failed.
    #[error("{call}: {name} ({code}): {text}")]
    Driver {
        /// The call, or the kernel that was launched.
        call: String,
        /// `CUresult`.
        code: i32,
        /// Its name.
        name: String,
        /// The driver's explanation.
        text: String,
    },
    /// A cuBLASLt call failed.
    #[error("{call}: cublasStatus {code} for {detail}")]
    Blas {
        /// The call.
        call: &'static str,
        /// `cublasStatus_t`.
        code: i32,
        /// The product's shape.
        detail: String,
    },
    /// NVRTC refused a kernel.
    #[error("kernel {kernel}: {log}")]
    Compile {
        /// The source file.
        kernel: String,
        /// The compiler's messages, joined to one line.
        log: String,
    },
    /// Memory does not suffice; the numbers are in the text.
    #[error("{0}")]
    OutOfMemory(String),
    /// The configuration or the checkpoint asks for something that this executor lacks.
    #[error("{0}")]
    Unsupported(String),
    /// A weight could not be read.
    #[error("tensor {tensor}: {source}")]
    Weight {
        /// The tensor's name in the file.
        tensor: String,
        /// What the source said.
        source: std::io::Error,
    },
    /// A rank of a group failed; the others cannot go on without it.
    #[error("{name}: {source}")]
    Rank {
        /// The rank and its device.
        name: String,
        /// What happened there.
        source: Box<Self>,
    },
    /// What the load waited for will not come; whoever was to bring it knows why.
    #[error("the load was given up")]
    GivenUp,
    /// A file of the cache or a thread could not be made.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl CudaError {
    /// Of a failure and what waiting for the stream brought after it, the one that counts: a library
    /// that stumbles over a fault of the device has no word for it, only the driver does.
    #[must_use]
    pub(crate) fn after_wait(self, waited: Result<(), Self>) -> Self {
        match waited {
            Err(fault) if fault.is_sticky() && !self.is_sticky() => fault,
            _ => self,
        }
    }

    /// Whether nothing more can run in this context: every error that a kernel raised is sticky.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        match self {
            Self::Rank { .. } => true,
            Self::Driver { code, .. } => !matches!(code, 1 | 2 | 400 | 401 | 801 | 900..=912),
            _ => false,
        }
    }

    /// The error as the engine sees it.
    #[must_use]
    pub fn to_executor_error(&self) -> ExecutorError {
        if self.is_sticky() {
            ExecutorError::DeviceLost(self.to_string())
        } else {
            ExecutorError::StepFailed(self.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::stream::Stream;
    use crate::sys::driver::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};

    fn blas() -> CudaError {
        CudaError::Blas { call: "cublasLtMatmul", code: 13, detail: "m 1 n 8 k 8".to_owned() }
    }

    /// A fault of the device that cuBLASLt met first is a lost device, not a failed step.
    #[test]
    fn the_driver_says_whether_the_device_is_lost() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        fake::fail("cuStreamSynchronize", 0, 700);
        let lost = blas().after_wait(stream.synchronise()).to_executor_error();
        let ExecutorError::DeviceLost(reason) = lost else { panic!("{lost}") };
        assert!(reason.starts_with("cuStreamSynchronize") && reason.contains("700"), "{reason}");

        // The stream works, or its error passes: only this step failed, for its own reason.
        for code in [CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY] {
            fake::fail("cuStreamSynchronize", 0, code);
            let failed = blas().after_wait(stream.synchronise()).to_executor_error();
            assert_eq!(failed, ExecutorError::StepFailed(blas().to_string()));
        }

        // Of two faults the first one is the cause.
        let launch = context.check("cuLaunchKernelEx", 719).unwrap_err();
        let later = context.check("cuStreamSynchronize", 700);
        assert!(launch.after_wait(later).to_string().starts_with("cuLaunchKernelEx"));
    }
}
