//! Drives the kernel on a real model: weights, paged KV, attention, sampling.
//!
//! What is decided (admission, batches, growth, preemption, prefix reuse, leases) the
//! kernel decides, under the program's own queues; this crate computes the tokens and
//! moves the bytes. It knows token ids, never a language's text of a program or HTTP.

pub mod apart;
pub mod chat;
pub mod contents;
pub mod decisions;
pub mod instances;
pub mod kernels;
pub mod kv;
pub mod model;
pub mod model_files;
mod outside;
pub mod request;
pub mod sampler;
pub mod served;
pub mod service;
mod store;
pub mod tokenizer;
pub mod weights;
pub mod workers;
