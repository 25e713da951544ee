//! Tells code from comments and tests in a Rust source, well enough to count and search it.

/// The lines of a source that hold code, tests apart: comments, blank lines and items under
/// `#[cfg(test)]` are left out.
pub(super) fn code_lines(source: &str) -> Vec<String> {
    let bare = without_comments(source);
    let mut lines = Vec::new();
    let mut rest = bare.as_str();
    while let Some(at) = rest.find("#[cfg(test)]") {
        push_lines(&mut lines, &rest[..at]);
        let attribute = at + "#[cfg(test)]".len();
        rest = &rest[attribute + end_of_item(&rest[attribute..])..];
    }
    push_lines(&mut lines, rest);
    lines
}

fn push_lines(lines: &mut Vec<String>, code: &str) {
    lines.extend(code.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
}

/// Where the item that starts at the beginning ends: after its closing brace or its semicolon.
/// Text in literals was blanked before, so braces can be counted.
fn end_of_item(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (byte == b'}' || byte == b';') {
            return at + 1;
        }
    }
    code.len()
}

/// The source with comments taken out and what literals hold replaced by `_`. Line breaks stay
/// where they were.
fn without_comments(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let here = &chars[at..];
        let end = match here {
            ['/', '/', ..] => at + here.iter().position(|&c| c == '\n').unwrap_or(here.len()),
            ['/', '*', ..] => at + block_comment(here),
            _ => {
                let literal = literal(here, at.checked_sub(1).map(|before| chars[before]));
                if literal == 0 {
                    code.push(here[0]);
                    at += 1;
                } else {
                    code.extend(here[..literal].iter().map(|&c| if c == '\n' { c } else { '_' }));
                    at += literal;
                }
                continue;
            }
        };
        code.extend(chars[at..end].iter().filter(|&&c| c == '\n'));
        at = end;
    }
    code
}

/// The length of the block comment here; such comments nest.
fn block_comment(here: &[char]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < here.len() {
        match here[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    here.len()
}

/// The length of the string or character literal here, 0 if there is none.
fn literal(here: &[char], before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match here {
        ['"', ..] => quoted(here, '"'),
        ['r', ..] | ['b' | 'c', 'r', ..] if !in_word => raw_string(here),
        ['\'', '\\', ..] => quoted(here, '\''),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

/// The length of a literal that ends at `quote`, in which a backslash shields the next character.
fn quoted(here: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < here.len() {
        match here[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    here.len()
}

/// The length of a raw string such as `r#"..."#`; 0 if this `r` begins something else.
fn raw_string(here: &[char]) -> usize {
    let prefix = here.iter().position(|&c| c == 'r').map_or(0, |at| at + 1);
    let nr_hashes = here[prefix..].iter().take_while(|&&c| c == '#').count();
    if here.get(prefix + nr_hashes) != Some(&'"') {
        return 0;
    }
    let body = prefix + nr_hashes + 1;
    let closes = |at: &usize| {
        here[*at] == '"'
            && here[at + 1..].iter().take(nr_hashes).filter(|&&c| c == '#').count() == nr_hashes
    };
    (body..here.len()).find(closes).map_or(here.len(), |at| at + 1 + nr_hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(source: &str) -> usize {
        code_lines(source).len()
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        assert_eq!(count("//! Doc.\n\n/// Item.\nfn a() {} // why\n/* b\n/* c */\n*/\n"), 1);
    }

    #[test]
    fn a_comment_mark_in_a_string_is_code() {
        assert_eq!(count("let a = \"/*\";\nlet b = \"*/ \\\" //\";\nlet c = r#\"\" /* \"#;\n"), 3);
    }

    #[test]
    fn quotes_as_characters_and_lifetimes_do_not_confuse() {
        assert_eq!(count("let a = '\"';\n// x\nlet b = '\\'';\n// y\nfn f<'a>(x: &'a u8) {}\n"), 3);
    }

    #[test]
    fn a_raw_identifier_is_no_string() {
        assert_eq!(count("let r#type = for_ + r;\n// x\nlet b = \"\";\n"), 2);
    }

    #[test]
    fn tests_are_left_out_and_what_follows_is_not() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n";
        assert_eq!(code_lines(source), ["fn a() {}", "fn c() {}"]);
        assert_eq!(count("#[cfg(test)]\nmod tests;\nfn c() {}\n"), 1);
        assert_eq!(count("#[cfg(test)]\nconst A: [u8; 2] = [1; 2];\nfn c() {}\n"), 1);
    }

    #[test]
    fn a_string_over_several_lines_counts_each() {
        assert_eq!(count("let a = \"x\ny\";\n"), 2);
    }
}
