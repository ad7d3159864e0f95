//! Chooses the vector instructions, once at load, and has the macro that compiles a plain function
//! for each path. Any thread.

use std::ffi::OsStr;

use crate::{CpuError, CpuPath, CpuPrecision};

/// A path that this processor can run: the only constructor checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorPath {
    kind: Kind,
    /// Whether products round activations; then AVX-512 BF16 and VNNI exist.
    fast: bool,
}

/// What code to run; a value other than `Portable` proves that the instructions exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl VectorPath {
    /// Resolves a wish; `Auto` leaves it to the variable `INGLE_CPU_PATH` of the environment, if that is set: tests
    /// run on each path with it, and bits of another machine can be had again.
    pub(crate) fn resolve(path: CpuPath) -> Result<Self, CpuError> {
        let path = match path {
            CpuPath::Auto => named(std::env::var_os("INGLE_CPU_PATH").as_deref())?,
            path => path,
        };
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match path {
                CpuPath::Auto | CpuPath::Avx512 if avx512 => return Ok(Self::of(Kind::Avx512)),
                CpuPath::Auto | CpuPath::Avx2 if avx2 => return Ok(Self::of(Kind::Avx2)),
                _ => {}
            }
        }
        match path {
            CpuPath::Auto | CpuPath::Portable => Ok(Self::of(Kind::Portable)),
            CpuPath::Avx512 => Err(CpuError::PathUnsupported("avx512")),
            CpuPath::Avx2 => Err(CpuError::PathUnsupported("avx2")),
        }
    }

    fn of(kind: Kind) -> Self {
        Self { kind, fast: false }
    }

    /// The same path with this precision.
    ///
    /// # Errors
    /// `CpuError::FastUnsupported`
    pub(crate) fn with(self, precision: CpuPrecision) -> Result<Self, CpuError> {
        match precision {
            CpuPrecision::Exact => Ok(Self { fast: false, ..self }),
            CpuPrecision::Fast => match fast_lacks() {
                Some(lack) => Err(CpuError::FastUnsupported(lack)),
                None if self.name() != "avx512" => {
                    Err(CpuError::FastUnsupported("path (INGLE_CPU_PATH) does not use"))
                }
                None => Ok(Self { fast: true, ..self }),
            },
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.kind
    }

    /// Whether products round activations.
    pub(crate) fn is_fast(self) -> bool {
        self.fast
    }

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self.kind {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if self.fast => "avx512, fast (activations in bf16 or 8 bits)",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Every path that this processor can run, widest first.
    pub(crate) fn all() -> Vec<Self> {
        [CpuPath::Avx512, CpuPath::Avx2, CpuPath::Portable]
            .into_iter()
            .filter_map(|path| Self::resolve(path).ok())
            .collect()
    }
}

/// The names of the paths that this processor can run, widest first. What each needs is in `VectorPath::resolve`.
#[must_use]
pub fn usable_paths() -> Vec<&'static str> {
    VectorPath::all().into_iter().map(VectorPath::name).collect()
}

/// What this processor lacks for `CpuPrecision::Fast`, to follow "which this"; `None` if it lacks nothing.
#[must_use]
pub fn fast_lacks() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if VectorPath::resolve(CpuPath::Avx512).is_ok()
        && is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512vnni")
    {
        return None;
    }
    Some("processor lacks")
}

/// The path that the environment names.
fn named(name: Option<&OsStr>) -> Result<CpuPath, CpuError> {
    let Some(name) = name else { return Ok(CpuPath::Auto) };
    match name.to_str() {
        Some("" | "auto") => Ok(CpuPath::Auto),
        Some("avx512") => Ok(CpuPath::Avx512),
        Some("avx2") => Ok(CpuPath::Avx2),
        Some("portable") => Ok(CpuPath::Portable),
        _ => Err(CpuError::PathUnknown(name.to_string_lossy().chars().take(64).collect())),
    }
}

/// `a * b + c`: fused where the path has it, so that one source serves all paths. The portable path
/// rounds twice, since a fused operation in software would be a hundred times slower.
pub(crate) trait Arithmetic {
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// With FMA instructions.
pub(crate) struct Fused;
/// Without.
pub(crate) struct Plain;

impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for Plain {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Compiles `body::<A>(args)`, an `#[inline(always)]` function without intrinsics, once per path;
/// the compiler vectorises each. Elementwise code gives equal bits in vector and tail.
macro_rules! per_path {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        $vis fn $name(path: $crate::vector_path::VectorPath, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::vector_path::Fused>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::vector_path::Fused>($($arg),*)
            }
            match path.kind() {
                // SAFETY: `VectorPath::resolve` made this kind only after it had detected every
                // feature that the function enables.
                #[cfg(target_arch = "x86_64")]
                $crate::vector_path::Kind::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: `VectorPath::resolve` made this kind only after it had detected AVX2, FMA and F16C,
                // all that the function enables.
                #[cfg(target_arch = "x86_64")]
                $crate::vector_path::Kind::Avx2 => unsafe { avx2($($arg),*) },
                $crate::vector_path::Kind::Portable => {
                    $body::<$crate::vector_path::Plain>($($arg),*)
                }
            }
        }
    };
}
pub(crate) use per_path;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_fast_products_need_instructions_and_the_path_that_has_them() {
        for path in VectorPath::all() {
            assert_eq!(path.with(CpuPrecision::Exact).unwrap(), path);
            match path.with(CpuPrecision::Fast) {
                Ok(fast) => {
                    assert!(path.name() == "avx512" && fast_lacks().is_none());
                    assert!(fast.is_fast() && fast.name().starts_with("avx512, fast"));
                }
                Err(error) => {
                    assert!(path.name() != "avx512" || fast_lacks().is_some());
                    let error = error.to_string();
                    assert!(error.starts_with("cpu_precision: fast needs AVX-512"), "{error}");
                }
            }
        }
    }

    #[test]
    fn test_the_environment_names_a_path_that_exists() {
        let path = |name: &str| named(Some(OsStr::new(name)));
        assert_eq!(named(None).unwrap(), CpuPath::Auto);
        assert_eq!(path("auto").unwrap(), CpuPath::Auto);
        assert_eq!(path("avx512").unwrap(), CpuPath::Avx512);
        assert_eq!(path("avx2").unwrap(), CpuPath::Avx2);
        assert_eq!(path("portable").unwrap(), CpuPath::Portable);
        let error = path("sse").unwrap_err().to_string();
        assert_eq!(error, "INGLE_CPU_PATH: must be auto, avx512, avx2 or portable, not \"sse\"");
    }
}
