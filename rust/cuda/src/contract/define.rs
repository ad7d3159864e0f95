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
    let mut after_constant = false;
    for item in items {
        let (docs, is_constant) = match item {
            Item::Constant { docs, .. } => (docs, true),
            Item::Structure { docs, .. } => (docs, false),
        };
        if !(is_constant && after_constant && docs.is_empty()) {
            text.push('\n');
        }
        after_constant = is_constant;
        for line in *docs {
            text += &format!("//{line}\n");
        }
        match item {
            Item::Constant { name, value, .. } => {
                text += &format!("#define {name} {}\n", literal(*value));
            }
            Item::Structure { name, fields, words, .. } => {
                text += &structure_of(name, fields, *words);
            }
        }
    }
    text
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

/// Declares constants and structures for Rust, and `items()`, from which the header is written.
///
/// A structure is `#[repr(C)]` and made of 32-bit words; `= N` is how many, which both sides assert.
macro_rules! contract {
    (
        $(constants { $( $(#[doc = $cdoc:literal])* $cname:ident = $value:expr; )* })?
        $( $(#[doc = $sdoc:literal])*
           struct $name:ident = $words:tt {
               $( $(#[doc = $fdoc:literal])* $field:ident: $ty:tt, )*
           } )*
    ) => {
        $($( $(#[doc = $cdoc])* pub(crate) const $cname: u32 = $value; )*)?
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
