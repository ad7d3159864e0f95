//! A register of f32 and what the kernels do with it, so that one source serves AVX2 and AVX-512.
//!
//! Everything is inlined into functions that enable the instructions; nothing here checks for them.

use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512i, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch,
    _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps,
    _mm256_or_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_sllv_epi32,
    _mm256_srlv_epi32, _mm256_storeu_ps, _mm512_and_si512, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_rorv_epi32, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_srlv_epi32, _mm512_storeu_ps,
};

/// `LEN` numbers side by side.
///
/// # Safety
/// Of every method: the processor has the instructions (AVX2, FMA and F16C; for the wide one AVX-512 F, BW,
/// DQ and VL), and a pointer may be read or written for `LEN` elements.
pub(super) trait Vector: Copy {
    const LEN: usize;
    /// As many words of 32 bits.
    type Words: Copy;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Widens f16, unsigned and signed bytes.
    unsafe fn halves(from: *const u16) -> Self;
    unsafe fn bytes(from: *const u8) -> Self;
    unsafe fn signed_bytes(from: *const u8) -> Self;

    unsafe fn words(from: *const u32) -> Self::Words;
    unsafe fn and(words: Self::Words, mask: u32) -> Self::Words;
    unsafe fn or(a: Self::Words, b: Self::Words) -> Self::Words;
    unsafe fn right(words: Self::Words, bits: i32) -> Self::Words;
    /// Rotates each word; `bits` is below 32.
    unsafe fn turn_right(words: Self::Words, bits: i32) -> Self::Words;
    /// Signed integers to numbers.
    unsafe fn to_floats(words: Self::Words) -> Self;
}

/// Brings the cache line nearer; the address may be any.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    // SAFETY: a prefetch is a hint: it does not fault, whatever the address. Every x86-64 processor has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>()) }
}

/// One method: its intrinsic, under the conditions of the trait.
macro_rules! methods {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller promises the instructions, and `LEN` elements behind a pointer.
                unsafe { $body }
            }
        )*
    };
}

/// The methods that take their value as `self`.
macro_rules! own_methods {
    ($store:ident, $mul:ident, $fma:ident) => {
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller promises the instructions and room for `LEN` numbers.
            unsafe { $store(to, self) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: the caller promises the instructions.
            unsafe { $mul(self, other) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: the caller promises the instructions.
            unsafe { $fma(self, b, c) }
        }
    };
}

impl Vector for __m256 {
    const LEN: usize = 8;
    type Words = __m256i;

    own_methods!(_mm256_storeu_ps, _mm256_mul_ps, _mm256_fmadd_ps);
    methods! {
        zero() -> Self = _mm256_setzero_ps();
        splat(value: f32) -> Self = _mm256_set1_ps(value);
        load(from: *const f32) -> Self = _mm256_loadu_ps(from);
        halves(from: *const u16) -> Self = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        bytes(from: *const u8) -> Self =
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())));
        signed_bytes(from: *const u8) -> Self =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())));
        words(from: *const u32) -> __m256i = _mm256_loadu_si256(from.cast());
        and(words: __m256i, mask: u32) -> __m256i =
            _mm256_and_si256(words, _mm256_set1_epi32(mask.cast_signed()));
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        right(words: __m256i, bits: i32) -> __m256i =
            _mm256_srlv_epi32(words, _mm256_set1_epi32(bits));
        turn_right(words: __m256i, bits: i32) -> __m256i = _mm256_or_si256(
            _mm256_srlv_epi32(words, _mm256_set1_epi32(bits)),
            _mm256_sllv_epi32(words, _mm256_set1_epi32(32 - bits))
        );
        to_floats(words: __m256i) -> Self = _mm256_cvtepi32_ps(words);
    }
}

impl Vector for __m512 {
    const LEN: usize = 16;
    type Words = __m512i;

    own_methods!(_mm512_storeu_ps, _mm512_mul_ps, _mm512_fmadd_ps);
    methods! {
        zero() -> Self = _mm512_setzero_ps();
        splat(value: f32) -> Self = _mm512_set1_ps(value);
        load(from: *const f32) -> Self = _mm512_loadu_ps(from);
        halves(from: *const u16) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        bytes(from: *const u8) -> Self =
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
        signed_bytes(from: *const u8) -> Self =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())));
        words(from: *const u32) -> __m512i = _mm512_loadu_si512(from.cast());
        and(words: __m512i, mask: u32) -> __m512i =
            _mm512_and_si512(words, _mm512_set1_epi32(mask.cast_signed()));
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        right(words: __m512i, bits: i32) -> __m512i =
            _mm512_srlv_epi32(words, _mm512_set1_epi32(bits));
        turn_right(words: __m512i, bits: i32) -> __m512i =
            _mm512_rorv_epi32(words, _mm512_set1_epi32(bits));
        to_floats(words: __m512i) -> Self = _mm512_cvtepi32_ps(words);
    }
}
