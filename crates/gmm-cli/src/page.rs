//! Pages that need nothing else: no script, no font, nothing from elsewhere. What all of them share.

/// Colours, fonts and tables; light and dark.
const STYLE: &str = include_str!("bench/report/style.css");

/// A page around `body`, which is HTML, as `style` is CSS.
pub(crate) fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n{body}\
         </main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// Text as HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
