//! A trace of sessions: what each turn brings.

/// Sessions in order of their first row; each its turns in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceFile {
    /// Per session, per turn.
    pub sessions: Vec<Vec<TraceTurn>>,
}

/// One row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceTurn {
    /// New prompt tokens.
    pub new: f64,
    /// Output tokens.
    pub out: f64,
    /// Think time after the answer.
    pub think: f64,
    /// Sixth column; 0 when absent.
    pub forced: f64,
}

impl TraceFile {
    /// Reads `session,turn,new,out,think[,forced]` rows.
    ///
    /// A header line may come first, columns go by place, blank lines and `#` lines are skipped.
    ///
    /// # Errors
    ///
    /// One sentence with the line number: wrong column count, not a number, negative or not finite,
    /// no rows.
    pub fn parse(_text: &str) -> Result<Self, String> {
        Err("not there yet".into())
    }
}
