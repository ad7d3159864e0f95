//! Declarations of the driver, NVRTC and cuBLASLt, and the code that opens their libraries. Any
//! thread.
//!
//! Written by hand against cuda.h, nvrtc.h and cublasLt.h 13.0
//! (docs/decisions/0010-cuda-bindings.md says why). Each library is opened at run time, so that one
//! wheel also serves machines without a GPU. Nothing here may panic: a missing library or symbol is
//! an error of the call that needs it.

pub(crate) mod cublaslt;
pub(crate) mod driver;
pub(crate) mod nvrtc;
mod search;

pub use search::LibraryPaths;
pub(crate) use search::{LoadedLibrary, open_cublaslt, open_driver, open_nvrtc};

/// Declares a table of C functions. Each is looked up once, at load; one that the library lacks
/// makes its own method an error, nothing else.
macro_rules! c_api {
    (
        $(#[$doc:meta])*
        $api:ident { $( fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty; )* }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names are the C headers'")]
        pub(crate) struct $api {
            library: $crate::sys::LoadedLibrary,
            $( pub(crate) $name: Option<unsafe extern "C" fn($($ty),*) -> $ret>, )*
        }

        #[allow(
            non_snake_case,
            clippy::too_many_arguments,
            reason = "the names and arguments are the C headers'"
        )]
        impl $api {
            /// Looks up every symbol of the table.
            pub(crate) fn new(library: $crate::sys::LoadedLibrary) -> Self {
                // SAFETY: each symbol is declared above with the C header's own argument types, and
                // `library` lives in the table and is never closed, so the pointers stay valid.
                unsafe {
                    Self { $( $name: library.symbol(concat!(stringify!($name), "\0")), )* library }
                }
            }

            /// A table without functions; a test fills in those that it scripts.
            #[cfg(test)]
            #[allow(dead_code, reason = "tests script the driver alone")]
            pub(crate) fn empty() -> Self {
                Self { library: $crate::sys::LoadedLibrary::this_process(), $( $name: None, )* }
            }

            /// The file that was opened.
            #[allow(dead_code, reason = "the probe asks some tables only")]
            pub(crate) fn path(&self) -> &str {
                self.library.path()
            }

            $(
                /// The C function of this name.
                ///
                /// # Safety
                /// As its manual page says.
                #[inline]
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<$ret, $crate::CudaError> {
                    match self.$name {
                        // SAFETY: the caller upholds the function's own contract.
                        Some(function) => Ok(unsafe { function($($arg),*) }),
                        None => Err($crate::CudaError::MissingSymbol {
                            library: self.library.path().to_owned(),
                            symbol: stringify!($name),
                        }),
                    }
                }
            )*
        }

        impl std::fmt::Debug for $api {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($api)).field("library", &self.library).finish()
            }
        }
    };
}
pub(crate) use c_api;
