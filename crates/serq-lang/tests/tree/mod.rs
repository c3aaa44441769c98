//! A tree as text that two layouts of one program share.

/// The tree of a text, places left out.
pub(crate) fn without_places(text: &str) -> String {
    let (file, _) = serq_lang::parse(0, text);
    let printed = format!("{file:?}");
    let mut pieces = printed.split("Span {");
    let mut tree = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        tree.push_str(piece.split_once('}').map_or("", |(_, rest)| rest));
    }
    tree
}
