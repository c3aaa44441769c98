//! Tables that fit the page: columns that do not go on below, under their row names again.

use comfy_table::{CellAlignment, Table, presets};

/// Blank columns before every line.
const INDENT: usize = 2;
/// Blank columns between two columns.
const GAP: usize = 2;

/// Headings and rows of text.
pub(crate) struct Columns {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The first columns name the row: left-aligned, and repeated when columns go on below.
    keys: usize,
    /// Further columns of words.
    words: Vec<usize>,
    /// Columns left out rather than put below.
    spare: Vec<usize>,
    /// Columns that stay beside the one before them.
    beside: Vec<usize>,
}

impl Columns {
    /// Empty, with the number of columns that name a row.
    pub(crate) fn new<T: Into<String>>(keys: usize, heads: impl IntoIterator<Item = T>) -> Self {
        Self {
            heads: heads.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            keys,
            words: Vec::new(),
            spare: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Sets a column that is no number to the left.
    pub(crate) fn left(mut self, column: usize) -> Self {
        self.words.push(column);
        self
    }

    /// Leaves a column out where the page is too narrow for it.
    pub(crate) fn if_it_fits(mut self, column: usize) -> Self {
        self.spare.push(column);
        self
    }

    /// Keeps a column beside the one before it.
    pub(crate) fn beside(mut self, column: usize) -> Self {
        self.beside.push(column);
        self
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.heads.len());
        self.rows.push(row);
    }

    /// Leaves out the columns, save the first `keep`, that say nothing in every row.
    pub(crate) fn without_silent(mut self, keep: usize) -> Self {
        let says = |text: &String| !matches!(text.as_str(), "" | "0" | crate::number::NOTHING);
        let kept: Vec<usize> =
            (0..self.heads.len()).filter(|&c| c < keep || self.rows.iter().any(|row| says(&row[c]))).collect();
        for row in self.rows.iter_mut().chain([&mut self.heads]) {
            *row = kept.iter().map(|&c| row[c].clone()).collect();
        }
        let moved = |columns: &[usize]| (0..kept.len()).filter(|&c| columns.contains(&kept[c])).collect();
        (self.words, self.spare, self.beside) = (moved(&self.words), moved(&self.spare), moved(&self.beside));
        self
    }

    /// Draws within a width; nothing when there are no rows.
    pub(crate) fn draw(&self, width: usize) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let length = |text: &String| text.chars().count();
        let column_width =
            |c: usize| self.rows.iter().map(|row| length(&row[c])).chain([length(&self.heads[c])]).max().unwrap_or(0);
        let key_width: usize = INDENT + (0..self.keys).map(|c| column_width(c) + GAP).sum::<usize>();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut used = usize::MAX;
        let columns: Vec<usize> = (self.keys..self.heads.len()).collect();
        for group in columns.chunk_by(|_, next| self.beside.contains(next)) {
            let wide: usize = group.iter().map(|&column| column_width(column) + GAP).sum();
            if used.saturating_add(wide) > width + GAP {
                if !parts.is_empty() && self.spare.contains(&group[0]) {
                    continue;
                }
                parts.push((0..self.keys).collect());
                used = key_width;
            }
            used += wide;
            parts.last_mut().expect("one part at least").extend(group);
        }
        if parts.is_empty() {
            parts.push((0..self.keys).collect());
        }
        let drawn: Vec<String> = parts.iter().map(|part| self.draw_part(part)).collect();
        drawn.join("\n")
    }

    fn draw_part(&self, part: &[usize]) -> String {
        let pick = |row: &Vec<String>| part.iter().map(|&c| row[c].clone()).collect::<Vec<_>>();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(pick(&self.heads));
        table.add_rows(self.rows.iter().map(pick));
        for (place, column) in table.column_iter_mut().enumerate() {
            let words = part[place] < self.keys || self.words.contains(&part[place]);
            column.set_cell_alignment(if words { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((if place == 0 { INDENT as u16 } else { 0 }, GAP as u16));
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn table() -> Columns {
        let mut table = Columns::new(1, ["pool", "used", "cached", "queue"]);
        table.row(vec!["P.kv[0]".into(), "435".into(), "71 000".into(), "0".into()]);
        table.row(vec!["P.kv[1]".into(), "38.2".into(), "0".into(), "0".into()]);
        table
    }

    #[test]
    fn numbers_stand_right_and_silent_columns_go() {
        expect![[r#"
            table
              pool     used  cached
              P.kv[0]   435  71 000
              P.kv[1]  38.2       0
        "#]]
        .assert_eq(&(String::from("table\n") + &table().without_silent(2).draw(80)));
    }

    #[test]
    fn a_spare_column_that_does_not_fit_is_left_out() {
        expect![[r#"
            table
              pool     used  cached
              P.kv[0]   435  71 000
              P.kv[1]  38.2       0
        "#]]
        .assert_eq(&(String::from("table\n") + &table().if_it_fits(3).draw(25)));
    }

    #[test]
    fn columns_side_by_side_go_below_together() {
        expect![[r#"
            table
              pool     used
              P.kv[0]   435
              P.kv[1]  38.2

              pool     cached  queue
              P.kv[0]  71 000      0
              P.kv[1]       0      0
        "#]]
        .assert_eq(&(String::from("table\n") + &table().beside(3).draw(25)));
    }

    #[test]
    fn columns_that_do_not_fit_go_on_below() {
        expect![[r#"
            table
              pool     used  cached
              P.kv[0]   435  71 000
              P.kv[1]  38.2       0

              pool     queue
              P.kv[0]      0
              P.kv[1]      0
        "#]]
        .assert_eq(&(String::from("table\n") + &table().draw(25)));
    }
}
