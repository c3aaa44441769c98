//! What stands for NIXL in a program that is built without it.

use std::sync::Arc;

use super::{Begun, Broken, Offer, Target};
use crate::memory::Region;
use crate::transport::Piece;

/// Says that it is not there.
///
/// # Errors
///
/// Always.
pub fn available() -> Result<(), String> {
    Err("this program was built without the feature `nixl`".into())
}

/// There is none.
#[derive(Debug)]
pub struct Agent(Never);

/// There is none.
#[derive(Clone, Copy, Debug)]
pub struct Read(Never);

#[derive(Clone, Copy, Debug)]
enum Never {}

impl Agent {
    /// Makes none.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn new(_: &Arc<Region>, _: bool) -> Result<Self, String> {
        available().map(|()| unreachable!("it is not there"))
    }

    /// What the peer has to know.
    pub fn offer(&self) -> &Offer {
        match self.0 {}
    }

    /// Where bytes can wait.
    pub fn staging(&self) -> &Arc<Region> {
        match self.0 {}
    }

    /// Knows its peer from now on.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn join(&mut self, _: &Offer) -> Result<(), String> {
        match self.0 {}
    }

    /// Helps the peer.
    pub fn help(&mut self) {
        match self.0 {}
    }

    /// Begins a read.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn begin(&mut self, _: &[Piece], _: Target) -> Result<Begun, Broken> {
        match self.0 {}
    }

    /// Looks after a read.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn look(&mut self, _: Read) -> Result<bool, Broken> {
        match self.0 {}
    }
}
