//! Number types that must not be confused. Any thread.

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The number as an index into a table.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id_type!(
    /// One entry of the model's vocabulary.
    TokenId(u32)
);
id_type!(
    /// One KV block: room for `block_size` tokens in every layer of a group.
    BlockId(u32)
);
id_type!(
    /// Room for a copy of what layers keep of a sequence besides blocks.
    SnapshotId(u32)
);
id_type!(
    /// One request (one choice of one prompt); unique for the life of the process.
    RequestId(u64)
);
id_type!(
    /// One step; rises by one with each plan.
    StepId(u64)
);
id_type!(
    /// Whose request it is: fairness and prefix-cache separation are per tenant.
    TenantId(u32)
);
id_type!(
    /// Microseconds on a clock that never goes back; the origin is the caller's.
    Micros(u64)
);

/// One place in the executor that holds a running request's state, and which of its owners is meant:
/// what belongs to an earlier owner never equals what belongs to a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    number: u32,
    generation: u32,
}

impl SlotId {
    /// The slot of this number, for its first owner.
    #[must_use]
    pub const fn first(number: u32) -> Self {
        Self { number, generation: 0 }
    }

    /// The same slot for its next owner.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { number: self.number, generation: self.generation.wrapping_add(1) }
    }

    /// Which of the executor's slots.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// The number as an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// Rises with each owner of the slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl std::fmt::Display for SlotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.fmt(f)
    }
}

/// A request's place in the request table; steps in flight refer to requests by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestIndex(pub(crate) u32);

/// A tenant's place in the table of tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantIndex(pub(crate) u32);
