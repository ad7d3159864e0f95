//! The macro that declares a struct or constant of the contract for Rust and generates the same
//! declaration for kernels/contract.cuh.

/// Something that a kernel reads or writes as 32-bit words.
pub(crate) trait Words: Sized {
    /// Words that it takes.
    const COUNT: usize;
    /// Its element as CUDA C++ names it.
    const C_TYPE: &'static str;

    /// Writes its words to the front of `words`, which has at least `COUNT`.
    fn write(&self, words: &mut [u32]);

    /// Reads it from the front of `words`, which has at least `COUNT`.
    fn read(words: &[u32]) -> Self;
}

impl Words for u32 {
    const COUNT: usize = 1;
    const C_TYPE: &'static str = "u32";

    fn write(&self, words: &mut [u32]) {
        words[0] = *self;
    }

    fn read(words: &[u32]) -> Self {
        words[0]
    }
}

impl Words for f32 {
    const COUNT: usize = 1;
    const C_TYPE: &'static str = "float";

    fn write(&self, words: &mut [u32]) {
        words[0] = self.to_bits();
    }

    fn read(words: &[u32]) -> Self {
        Self::from_bits(words[0])
    }
}

impl<T: Words, const N: usize> Words for [T; N] {
    const COUNT: usize = N * T::COUNT;
    const C_TYPE: &'static str = T::C_TYPE;

    fn write(&self, words: &mut [u32]) {
        for (value, words) in self.iter().zip(words.chunks_exact_mut(T::COUNT)) {
            value.write(words);
        }
    }

    fn read(words: &[u32]) -> Self {
        std::array::from_fn(|index| T::read(&words[index * T::COUNT..]))
    }
}

/// A field of a structure as the header declares it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) c_type: &'static str,
    /// Words from the start of the structure.
    pub(crate) offset: usize,
    /// Words that it takes; more than one is an array.
    pub(crate) count: usize,
}

/// One item of the header.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A number that both sides use.
    Constant { docs: &'static [&'static str], name: &'static str, value: u32 },
    /// A number that both sides compute in the same way.
    Formula {
        docs: &'static [&'static str],
        name: &'static str,
        arguments: &'static [&'static str],
        /// A condition and the value where it holds.
        when: Option<(&'static str, &'static str)>,
        value: &'static str,
    },
    /// A structure that one side writes and the other reads.
    Structure {
        docs: &'static [&'static str],
        name: &'static str,
        fields: Vec<Field>,
        words: usize,
    },
}

/// The text of kernels/contract.cuh.
pub(crate) fn header_of(items: &[Item]) -> String {
    let mut text = HEAD.to_owned();
    let mut after_short = false;
    for item in items {
        let (docs, is_short) = match item {
            Item::Constant { docs, .. } | Item::Formula { docs, .. } => (docs, true),
            Item::Structure { docs, .. } => (docs, false),
        };
        if !(is_short && after_short && docs.is_empty()) {
            text.push('\n');
        }
        after_short = is_short;
        for line in *docs {
            text += &format!("//{line}\n");
        }
        match item {
            Item::Constant { name, value, .. } => {
                text += &format!("#define {name} {}\n", literal(*value));
            }
            Item::Formula { name, arguments, when, value, .. } => {
                text += &formula_of(name, arguments, *when, value);
            }
            Item::Structure { name, fields, words, .. } => {
                text += &structure_of(name, fields, *words);
            }
        }
    }
    text
}

/// The only element, or none.
pub(crate) fn first<T, const N: usize>(items: [T; N]) -> Option<T> {
    items.into_iter().next()
}

fn formula_of(name: &str, arguments: &[&str], when: Option<(&str, &str)>, value: &str) -> String {
    let arguments: Vec<_> = arguments.iter().map(|name| format!("u32 {name}")).collect();
    let when = when.map_or(String::new(), |(holds, then)| format!("{holds} ? {then} : "));
    // One line, however the source breaks it.
    let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
    let arguments = arguments.join(", ");
    format!("constexpr u32 {name}({arguments}) {{\n    return {when}{value};\n}}\n")
}

fn structure_of(name: &str, fields: &[Field], words: usize) -> String {
    let mut text = format!("struct {name} {{\n");
    for Field { name, c_type, count, .. } in fields {
        let array = if *count > 1 { format!("[{count}]") } else { String::new() };
        text += &format!("    {c_type} {name}{array};\n");
    }
    text += "};\n";
    text += &format!("static_assert(sizeof({name}) == {}, \"{name}\");\n", 4 * words);
    for Field { name: field, offset, .. } in fields {
        let at = 4 * offset;
        text += &format!("FIELD_AT({name}, {field}, {at});\n");
    }
    text
}

fn literal(value: u32) -> String {
    if value == u32::MAX { "0xffffffffu".to_owned() } else { format!("{value}u") }
}

const HEAD: &str = "\
// What host and kernels agree on: structures, their sizes and offsets, constants.
// Written from rust/cuda/src/contract/mod.rs by `cargo run -p ingle-cuda --example write_contract`;
// ptx.cuh includes it.
#pragma once

// offsetof as cuda's own headers write it; NVRTC has no other name for it.
#define FIELD_AT(type, field, bytes) static_assert(__INTADDR__(&((type*)0)->field) == bytes, #type \"::\" #field)
";

/// Declares constants, formulas and structures for Rust, and `items()`, from which the header is written.
///
/// A formula is over u32 and in what Rust and C++ write alike; `when (A) (B) else (C)` is B where A holds, else C.
/// A structure is `#[repr(C)]` and made of 32-bit words; `= N` is how many, which both sides assert.
macro_rules! contract {
    (
        $(constants { $( $(#[doc = $cdoc:literal])* $cname:ident = $value:expr; )* })?
        $(formulas { $(
            $(#[doc = $ndoc:literal])*
            $formula:ident($($argument:ident),*) = $(when ($holds:expr) ($then:expr) else)? ($other:expr);
        )* })?
        $( $(#[doc = $sdoc:literal])*
           struct $name:ident = $words:tt {
               $( $(#[doc = $fdoc:literal])* $field:ident: $ty:tt, )*
           } )*
    ) => {
        $($( $(#[doc = $cdoc])* pub(crate) const $cname: u32 = $value; )*)?
        $($(
            $(#[doc = $ndoc])*
            #[allow(clippy::manual_div_ceil, reason = "as C++ writes it too")]
            pub(crate) const fn $formula($($argument: u32),*) -> u32 {
                $( if $holds { return $then; } )?
                $other
            }
        )*)?
        $(
            $(#[doc = $sdoc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            pub(crate) struct $name { $( $(#[doc = $fdoc])* pub(crate) $field: $ty, )* }

            const _: () = assert!(size_of::<$name>() == 4 * $words);
            const _: () = assert!(<$name as Words>::COUNT == $words);

            impl Words for $name {
                const COUNT: usize = 0 $( + <$ty as Words>::COUNT )*;
                const C_TYPE: &'static str = stringify!($name);

                fn write(&self, words: &mut [u32]) {
                    $( self.$field.write(&mut words[std::mem::offset_of!(Self, $field) / 4..]); )*
                }

                fn read(words: &[u32]) -> Self {
                    Self { $( $field: Words::read(&words[std::mem::offset_of!(Self, $field) / 4..]), )* }
                }
            }
        )*

        /// Everything above, in order.
        fn items() -> Vec<Item> {
            vec![
                $($( Item::Constant {
                    docs: &[$($cdoc),*],
                    name: stringify!($cname),
                    value: $cname,
                }, )*)?
                $($( Item::Formula {
                    docs: &[$($ndoc),*],
                    name: stringify!($formula),
                    arguments: &[$(stringify!($argument)),*],
                    when: define::first([$( (stringify!($holds), stringify!($then)) )?]),
                    value: stringify!($other),
                }, )*)?
                $( Item::Structure {
                    docs: &[$($sdoc),*],
                    name: stringify!($name),
                    fields: vec![$( Field {
                        name: stringify!($field),
                        c_type: <$ty as Words>::C_TYPE,
                        offset: std::mem::offset_of!($name, $field) / 4,
                        count: <$ty as Words>::COUNT,
                    }, )*],
                    words: $words,
                }, )*
            ]
        }
    };
}
pub(crate) use contract;
