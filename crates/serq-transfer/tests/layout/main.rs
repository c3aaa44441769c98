//! Layouts and their conversion, from outside.

mod canaries;
mod descriptors;
mod incidents;
mod moves;
mod naive;
mod numbers;
mod refusals;
mod scales;
mod shapes;
