//! Plots as self-contained SVG: lines on logarithmic axes. No chart crate is used: those that exist draw one
//! background only, and need fonts or a browser to know how wide a label is.
//!
//! What belongs here: geometry and looks; what the numbers mean is the caller's. [`canvas`] writes SVG and knows how
//! wide text is, [`scale`] maps numbers to places and finds ticks, [`palette`] has the colours, [`legend`] flows; of
//! these [`lines`] is made. Invariant: every label lies inside the picture, no two
//! labels overlap, text from the caller is escaped, and all is readable on a light and on a dark background;
//! whatever is given, an empty picture included, there is no panic.

mod canvas;
mod legend;
mod lines;
mod palette;
mod scale;

pub use lines::{Line, LineChart, Panel, Series};
pub use palette::SLOTS;
