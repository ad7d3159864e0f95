//! The sampler against a slow version written from the contract.
