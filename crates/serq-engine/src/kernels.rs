//! What is computed most: products of activations with packed weights.
